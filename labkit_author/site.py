"""Build the website with Sphinx, from the labs' stored runs and the documents.

The prepared folder mirrors the checkout, so links between labs, glossary and documents work unchanged.
A lab is its stored solution notebook without answers and the instructor's cells. Hints are in neither: the last
ones are nearly the answers.
"""

import ast
import base64
import hashlib
import html
import re
import shutil
from collections.abc import Sequence
from pathlib import Path

import nbformat
import typer
from nbformat import NotebookNode
from typer.cli import get_docs_for_click

from labkit.cli import application
from labkit.exercises import catalogue
from labkit.exercises.catalogue import LabInfo
from labkit.system import files, paths, processes
from labkit.system.errors import LabError
from labkit_author import notebooks, sources
from labkit_author.imports import PACKAGES
from labkit_author.minutes import total

SITE = paths.ENV / "site"  # the folder of Sphinx's configuration, the front page, the style
GROUP = "site"  # the dependency group that Sphinx needs
# The pages of the site's sections, in order, relative to the section's folder in docs/.
SECTIONS = {
    "Learn": "is-it-for-you why assistants glossary ../../SUPPORT",
    "Teach": "plan run-the-day troubleshooting online credit after-the-day",
    "Deploy": "install platforms clusters server wires ../../SECURITY ../../CHANGELOG",
    "Contribute": "../../CONTRIBUTING writing-labs testing modules releasing upstream upstream/* ../../CODE_OF_CONDUCT",
}
AT_THE_ROOT = ("CHANGELOG.md", "CODE_OF_CONDUCT.md", "CONTRIBUTING.md", "SECURITY.md", "SUPPORT.md")
EXTRA = "extra"  # the folder that Sphinx copies unchanged
PICTURES = "pictures"
BUILD_TIMEOUT_S = 600
# What a page leaves out: folded answers, in prose and verdicts, and page-wide styles.
ANSWER = re.compile(r"<details><summary>(?:A model answer|The kit's solution)</summary>.*?</details>", re.S)
STYLE = re.compile(r"<style.*?</style>", re.S)
NO_PROSE = re.compile(r"^```.*?^```$|`[^`\n]+`", re.M | re.S)  # code
LINK = re.compile(r"\]\((?!\w+:|#)([^()\s#]+)(?:#[^()\s]*)?\)")  # a link to a file of this checkout
INLINE_PNG = re.compile(r'(<img\b[^>]*\bsrc=")data:image/png;base64,([^"]+)"')


def build(out: Path) -> None:
    """Build the site in a folder, replacing an earlier one.

    Raises
    ------
    LabError
        If the folder contains other files, Sphinx can't be installed, or Sphinx reports a problem.
    """
    _refuse_other_folder(out)
    prepared, new_site, log = (paths.STATE / name for name in ("site", "site.html", "site.log"))
    prepare(prepared)
    with files.writing(new_site):
        shutil.rmtree(new_site, ignore_errors=True)
    strictly = ("--fail-on-warning", "--keep-going", "--quiet")
    ended = processes.run(sphinx("-b", "html", *strictly, str(prepared), str(new_site)), timeout=BUILD_TIMEOUT_S)
    files.write(log, "\n".join(ended.lines) + "\n")
    if ended.failure:
        message = next((line for line in ended.lines if re.search("error|warning", line, re.I)), ended.failure)
        raise LabError(f"the site was not built: {message.strip()} (full log: {paths.shown(log)})")
    with files.writing(out, "name another folder with --out"):
        shutil.rmtree(out, ignore_errors=True)
        out.parent.mkdir(parents=True, exist_ok=True)
        shutil.move(new_site, out)


def sphinx(*arguments: str) -> list[str]:
    """Return the command that runs Sphinx in a temporary environment, which uv builds from its cache.

    The students' environment doesn't need Sphinx and its dependencies.
    """
    environment = ("--project", str(paths.ROOT), "--locked", "--isolated", "--only-group", GROUP)
    return [processes.uv(), "run", "--quiet", *environment, "sphinx-build", *arguments]


def prepare(folder: Path) -> None:
    """Write Sphinx's sources of the site to a folder, replacing its contents.

    Raises
    ------
    LabError
        If a lab has no stored outputs, a picture has no alternative text, or the target of a link is missing.
    """
    with files.writing(folder):
        shutil.rmtree(folder, ignore_errors=True)
        (folder / EXTRA / PICTURES).mkdir(parents=True)
        (folder / "notebooks").mkdir()
        for info in catalogue.labs():
            page = with_pictures_in_files(lab(info), folder / EXTRA / PICTURES)
            (folder / "notebooks" / info.notebook.name).write_text(notebooks.dumps(page), encoding="utf-8")
        for path in (*(paths.ROOT / name for name in AT_THE_ROOT), *(paths.ROOT / "docs").rglob("*.md")):
            _write(folder / path.relative_to(paths.ROOT), document(path.read_text(encoding="utf-8")))
        readme = document((paths.ROOT / "README.md").read_text(encoding="utf-8"))
        for path in SITE.iterdir():
            text = path.read_text(encoding="utf-8")
            _write(folder / path.name, text.replace("{{ readme }}", readme))
        _write(folder / "notebooks" / "index.md", _list_of_labs())
        _write(folder / "commands.md", _commands())
        _write(folder / "docs" / "contribute" / "modules.md", _modules())
        for title, pages in SECTIONS.items():
            _write(folder / "docs" / title.lower() / "index.md", f"# {title}\n\n{_toctree(pages.split())}")
        _copy_linked_files(folder)


def lab(info: LabInfo) -> NotebookNode:
    """Return a lab's page: its stored run without answers and the instructor's cells."""
    stored = nbformat.read(info.solution, as_version=4)
    if not any(cell.get("execution_count") for cell in stored.cells):
        raise LabError(f"lab {info.number} has no stored outputs: ./lab build {info.number} --execute")
    stubs = {exercise.cell: exercise.stub for exercise in info.exercises.values()}
    page: NotebookNode = nbformat.v4.new_notebook(metadata=stored.metadata)
    for cell in stored.cells:
        if notebooks.INSTRUCTOR in cell.metadata.get("tags", []):
            continue
        if cell.cell_type == "code":
            cell.outputs = [output for output in map(_as_html, cell.outputs) if output.get("data") != {}]
        else:
            cell.source = ANSWER.sub("", cell.source)
        cell.source = stubs.get(cell.id, cell.source)
        if cell.metadata.get("jupyter", {}).get("source_hidden"):
            cell.metadata["tags"] = [*cell.metadata.get("tags", []), "hide-input"]
        page.cells.append(cell)
    opening = (
        f"*This run on one machine used the kit's answers, which are not shown. To write and run your own, start the "
        f"lab with `./lab start {info.number}`.*"
    )
    page.cells.insert(1, nbformat.v4.new_markdown_cell(opening, id="stored-run"))
    return page


def document(text: str) -> str:
    """Return a document for Sphinx: without JupyterLab's link targets, and without skipped heading levels.

    The glossary's terms are level-3 headings right below its title. The README is the site's front page.
    """
    text = re.sub(r'^<a id="[^"]*"></a>\n\n', "", text, flags=re.M)
    text = re.sub(r"\]\(((?:\.\./)*)README\.md", r"](\1index.md", text)
    head, mark, rest = text.partition("\n## ")
    return re.sub("^### ", "## ", head, flags=re.M) + mark + rest


def with_pictures_in_files(notebook: NotebookNode, folder: Path) -> NotebookNode:
    """Write the pictures in a notebook's outputs to files, which browsers load lazily; return the notebook.

    A file's name is a hash of the picture, so an unchanged picture stays the same file.
    """

    def place(match: re.Match[str]) -> str:
        png = base64.b64decode(match[2])
        name = f"{hashlib.sha256(png).hexdigest()[:16]}.png"
        (folder / name).write_bytes(png)
        return f'{match[1]}../{PICTURES}/{name}" loading="lazy"'

    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            if page := output.get("data", {}).get("text/html"):
                output.data["text/html"] = INLINE_PNG.sub(place, page)
    return notebook


def _as_html(output: NotebookNode) -> NotebookNode:
    """Return an output with pictures as HTML with alternative text, and without answers and page-wide styles."""
    data = output.get("data", {})
    if "image/png" in data:
        alt = output.metadata.get("image/png", {}).get("alt")
        if not alt:
            raise LabError("a stored picture has no alternative text: show it with plots.show or Image(…, alt=…).")
        png = "".join(data.pop("image/png").split())
        data["text/html"] = f'<img src="data:image/png;base64,{png}" alt="{html.escape(alt)}">'
    if "text/html" in data:
        data["text/html"] = STYLE.sub("", ANSWER.sub("", data["text/html"]))
        if not data["text/html"]:
            data.clear()
    return output


def _list_of_labs() -> str:
    """Return the page of all labs, with their goals and minutes."""
    lines = ["# The labs", "", "| lab | you will | minutes | core minutes | exercises |", f"{'| --- ' * 5}|"]
    for info in catalogue.labs():
        minutes, core_minutes = total(info.sections), total([section for section in info.sections if section.core])
        goal = sources.about(sources.find(info.number))["goal"]
        counts = f"{minutes} | {core_minutes} | {len(info.exercises)}"
        lines.append(f"| [{info.title}]({info.notebook.name}) | {goal} | {counts} |")
    return "\n".join([*lines, "", _toctree([info.name for info in catalogue.labs()], ":hidden:\n")])


def _commands() -> str:
    """Return the page of all commands, from their help texts, without Typer's shortened lists of them."""
    app = typer.main.get_command(application())
    page = get_docs_for_click(obj=app, ctx=typer.Context(app), name="./lab", title="Commands")
    return re.sub(r"^\*\*Commands\*\*:\n\n(\* .*\n)+\n", "", page, flags=re.M)


def _modules() -> str:
    """Return the page of all modules, with the first paragraph of each docstring."""
    lines = ["# Modules", "", "| module | what it provides |", "| --- | --- |"]
    for path in sorted(path for package in PACKAGES for path in (paths.ROOT / package).rglob("*.py")):
        docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
        first = " ".join(docstring.partition("\n\n")[0].split())
        lines.append(f"| `{path.relative_to(paths.ROOT)}` | {first} |")
    return "\n".join([*lines, ""])


def _toctree(pages: Sequence[str], options: str = "") -> str:
    entries = "\n".join(pages)
    return f"```{{toctree}}\n:glob:\n:maxdepth: 1\n{options}\n{entries}\n```\n"


def _copy_linked_files(folder: Path) -> None:
    """Copy files that pages link to, such as environment.yml, to the links' targets."""
    for page in [*folder.rglob("*.md"), *folder.glob("notebooks/*.ipynb")]:
        for target in _links(page):
            target_file = (page.parent / target).resolve()
            if not target_file.exists():
                original = paths.ROOT / target_file.relative_to(folder.resolve())
                if not original.is_file():
                    raise LabError(f"{page.relative_to(folder)} links to {target}, which doesn't exist.")
                target_file.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(original, target_file)


def _links(page: Path) -> list[str]:
    """Return the files to which a prepared page's prose links, as written."""
    if page.suffix == ".md":
        prose = page.read_text(encoding="utf-8")
    else:
        cells = nbformat.read(page, as_version=4).cells
        prose = "\n\n".join(cell.source for cell in cells if cell.cell_type == "markdown")
    return LINK.findall(NO_PROSE.sub("", prose))


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def _refuse_other_folder(out: Path) -> None:
    """Refuse to replace a folder that is not a site."""
    if out.exists() and not (out.is_dir() and (not any(out.iterdir()) or (out / "searchindex.js").exists())):
        raise LabError(f"{paths.shown(out)} contains files other than a site: name another folder with --out.")
