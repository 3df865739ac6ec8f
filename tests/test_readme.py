"""The README's python blocks run and print what the README shows."""

import contextlib
import io
import pathlib
import re

import pytest

README = pathlib.Path(__file__).resolve().parents[1] / 'README.md'

# A python block and, where only blank lines lie between, the output after it.
BLOCK = re.compile(
  r'^```python\n(?P<code>.*?)^```[ ]*\n'
  r'(?:\s*^```(?:text|none)\n(?P<output>.*?)^```)?',
  re.DOTALL | re.MULTILINE,
)


def find_blocks(text):
  """Returns `(line, code, output)`s; `output` is None where none is shown."""
  return [
    (text.count('\n', 0, m.start()) + 2, m['code'], m['output'])
    for m in BLOCK.finditer(text + '\n')
  ]


def run(code, filename):
  """Returns what `code` prints when run in a namespace of its own."""
  printed = io.StringIO()
  with contextlib.redirect_stdout(printed):
    exec(compile(code, filename, 'exec'), {'__name__': '__main__'})
  return printed.getvalue()


def strip_line_ends(text):
  return '\n'.join(line.rstrip() for line in text.rstrip().splitlines())


BLOCKS = find_blocks(README.read_text(encoding='utf-8'))


def test_the_readme_has_a_python_block():
  assert BLOCKS


@pytest.mark.parametrize(
  ('line', 'code', 'output'), BLOCKS, ids=[f'line{b[0]}' for b in BLOCKS]
)
def test_block_runs_and_prints_what_is_shown(
  line, code, output, tmp_path, monkeypatch
):
  monkeypatch.chdir(tmp_path)
  # Blank lines first, so that a traceback gives the line of the README.
  printed = run('\n' * (line - 1) + code, str(README))
  if output is not None:
    assert strip_line_ends(printed) == strip_line_ends(output)


def test_output_belongs_to_the_block_directly_before_it():
  text = (
    '```python\nprint(1)\n```\n\n```text\n1\n```\nwords\n'
    '```python\nx = 2\n```\nwords\n```text\n2\n```\n'
  )
  assert find_blocks(text) == [(2, 'print(1)\n', '1\n'), (10, 'x = 2\n', None)]
