# SPDX-License-Identifier: Apache-2.0
"""Runs code and commands of README and pages, and checks what they print."""

import ast
import contextlib
import io
import pathlib
import re
import subprocess

import pytest

import scripts

pytestmark = pytest.mark.all_cases

ROOT = pathlib.Path(__file__).resolve().parents[1]
PAGES = [
  ROOT / 'README.md',
  *sorted(
    path
    for path in (ROOT / 'docs').rglob('*.md')
    if 'notebooks' not in path.relative_to(ROOT).parts
  ),
]

# A match is a python block and, if only blank lines follow, the next output.
BLOCK = re.compile(
  r'^```python\n(?P<code>.*?)^```[ ]*\n'
  r'(?:\s*^```(?:text|none)\n(?P<output>.*?)^```)?',
  re.DOTALL | re.MULTILINE,
)


def find_blocks(text):
  """Returns `(line, code, output)`s; `output` is None if none is shown."""
  return [
    (text.count('\n', 0, m.start()) + 2, m['code'], m['output'])
    for m in BLOCK.finditer(text + '\n')
  ]


def run(code, filename):
  """Returns what `code` prints when it runs in a separate namespace."""
  printed = io.StringIO()
  with contextlib.redirect_stdout(printed):
    exec(compile(code, filename, 'exec'), {'__name__': '__main__'})
  return printed.getvalue()


def strip_line_ends(text):
  return '\n'.join(line.rstrip() for line in text.rstrip().splitlines())


TEXTS = {
  str(path.relative_to(ROOT)): path.read_text(encoding='utf-8')
  for path in PAGES
}
TEXT = '\n'.join(TEXTS.values())
BLOCKS = [
  pytest.param(page, *block, id=f'{page}-line{block[0]}')
  for page, text in TEXTS.items()
  for block in find_blocks(text)
]


def test_the_readme_has_a_python_block():
  assert find_blocks(TEXTS['README.md'])


@pytest.mark.parametrize(('page', 'line', 'code', 'output'), BLOCKS)
def test_block_runs_and_prints_what_is_shown(
  page, line, code, output, tmp_path, monkeypatch
):
  monkeypatch.chdir(tmp_path)
  # Blank lines come first, so that a traceback gives the line of the page.
  printed = run('\n' * (line - 1) + code, str(ROOT / page))
  if output is not None:
    assert strip_line_ends(printed) == strip_line_ends(output)


def test_output_belongs_to_the_block_directly_before_it():
  text = (
    '```python\nprint(1)\n```\n\n```text\n1\n```\nwords\n'
    '```python\nx = 2\n```\nwords\n```text\n2\n```\n'
  )
  assert find_blocks(text) == [(2, 'print(1)\n', '1\n'), (10, 'x = 2\n', None)]


# Commands: scripts such as `examples/x.py --flag`, and the results of make.


def find_commands(text):
  """Returns the scripts of all examples that a text names, with their flags."""
  as_path = lambda match: f'`{match[1].replace(".", "/")}.py'
  text = re.sub(r'`\.venv/bin/python\s+-m\s+(examples[\w.]+)', as_path, text)
  command = r'`(?:\.venv/bin/python\s+)?(examples/[^`]+\.py[^`]*)`'
  found = re.findall(command, text)
  return {' '.join(command.split()) for command in found}


def strings_of_tests():
  """Returns all strings in the code of the tests, which name what they run."""
  found = set()
  for path in pathlib.Path(__file__).parent.glob('test_*.py'):
    for node in ast.walk(ast.parse(path.read_text(encoding='utf-8'))):
      if isinstance(node, ast.Constant) and isinstance(node.value, str):
        found.add(node.value)
  return found


def test_every_command_is_run_by_a_test():
  commands = find_commands(TEXT)
  assert len(commands) > 10
  strings = strings_of_tests()
  for command in commands:
    script = command.split()[0]
    # The string is a command, a script of a table `SHORT`, or a file name.
    assert strings & {command, script, pathlib.Path(script).name}, command


def test_commands_are_found_over_the_end_of_a_line():
  text = '`examples/a.py` and `.venv/bin/python -m examples.b.c\n--d=e`, `f.py`'
  assert find_commands(text) == {'examples/a.py', 'examples/b/c.py --d=e'}


# Scripts that no other test runs, and the flags that shorten them.
SHORT = {
  'examples/benchmarks/chain_defaults.py': ['--problems=1', '--draws=3'],
  'examples/benchmarks/chain_peers.py': ['--smoke'],
  'examples/benchmarks/chains.py': ['--smoke'],
  'examples/benchmarks/discrete_vae.py': ['--smoke'],
  'examples/benchmarks/elbo_forms.py': ['--smoke'],
  'examples/benchmarks/vocabulary.py': ['--smoke'],
  'examples/retrieval.py': ['--steps=1'],
  'examples/benchmarks/defaults.py': ['--problems=1', '--draws=250'],
  'examples/benchmarks/leave_one_out.py': ['--problems=1'],
  'examples/benchmarks/many_sites.py': ['--smoke'],
  'examples/benchmarks/moving.py': ['--smoke'],
  'examples/benchmarks/partition.py': ['--smoke'],
  'examples/benchmarks/semisupervised.py': ['--smoke'],
  'examples/benchmarks/site_interaction.py': ['--smoke'],
  'examples/benchmarks/vi_defaults.py': ['--problems=1', '--draws=4'],
}


@pytest.mark.slow
@pytest.mark.parametrize('command', SHORT)
def test_script_runs(command, tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)  # the script writes to `outputs/`
  assert scripts.run_command(command, *SHORT[command])


def test_make_knows_its_targets():
  targets = set(re.findall(r'(?:`|^)make ([a-z-]+)', TEXT, re.MULTILINE))
  assert {'demo', 'test'} <= targets
  subprocess.run(['make', '--dry-run', *targets], cwd=ROOT, check=True)


def test_what_make_demo_runs_is_a_short_form_of_an_example():
  printed = subprocess.run(
    ['make', '--dry-run', 'demo'], cwd=ROOT, stdout=-1, text=True, check=True
  ).stdout
  (line,) = re.findall(r'examples[./].*', printed)
  assert line.startswith('examples.paper.semisupervised_mnist --demo ')


@pytest.mark.parametrize('page', TEXTS)
def test_every_fence_is_closed(page):
  fences = re.findall(r'^ *```.*', TEXTS[page], re.MULTILINE)
  for start, end in zip(fences[::2], fences[1::2], strict=True):
    assert end.strip() == '```', f'{start} ... {end}'


@pytest.mark.parametrize('page', TEXTS)
def test_links_lead_somewhere(page):
  folder = (ROOT / page).parent
  for link in re.findall(r'\]\(([^)]+)\)', TEXTS[page]):
    path, _, anchor = link.partition('#')
    if path.startswith('https://'):
      continue
    target = folder / path if path else ROOT / page
    assert target.exists(), link
    # `make docs` checks entries of the API reference.
    if anchor and 'api' not in target.parts:
      assert anchor in anchors_of(target.read_text(encoding='utf-8')), link


def anchors_of(text):
  """Returns the anchors of the headings of a page."""
  titles = re.findall(r'^#+ (.*)$', text, re.MULTILINE)
  plain = [re.sub(r'[^\w -]', '', title).lower() for title in titles]
  return {title.replace(' ', '-') for title in plain}


def test_the_readme_is_one_screen_and_links():
  assert len(TEXTS['README.md'].splitlines()) <= 180
