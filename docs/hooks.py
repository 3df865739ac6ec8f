# SPDX-License-Identifier: Apache-2.0
"""Lets pages of the site use files outside of `docs/`.

In the repository, pages link to files by relative paths, so the links also
work on GitHub. For the site, this hook copies figures and makes other links
lead to GitHub. `docs/notebooks` is a symbolic link to `colab`.
"""

import pathlib
import posixpath
import re

from mkdocs.structure.files import File

ROOT = pathlib.Path(__file__).resolve().parents[1]
LINK = re.compile(r'(!?)\[([^\]]*)\]\(((?:\.\./)+[^)#\s]+)(#[^)]*)?\)')


def on_page_markdown(markdown, page, config, files):
  """Replaces links that leave `docs/`."""

  def replace(match):
    mark, text, target, anchor = match.groups()
    folder = posixpath.dirname(f'docs/{page.file.src_uri}')
    path = posixpath.normpath(posixpath.join(folder, target))
    if path.startswith('docs/'):
      return match[0]
    if not (ROOT / path).exists():
      raise FileNotFoundError(f'{page.file.src_uri} links to {path}.')
    if path.startswith('colab/') and path.endswith('.ipynb'):
      uri = 'notebooks/' + posixpath.basename(path)
    elif mark:
      uri = f'figures/{path}'
      if files.get_file_from_path(uri) is None:
        source = str(ROOT / path)
        files.append(File.generated(config, uri, abs_src_path=source))
    else:
      kind = 'tree' if (ROOT / path).is_dir() else 'blob'
      return f'[{text}]({config.repo_url}/{kind}/main/{path}{anchor or ""})'
    relative = posixpath.relpath(uri, posixpath.dirname(page.file.src_uri))
    return f'{mark}[{text}]({relative}{anchor or ""})'

  return LINK.sub(replace, markdown)
