"""The site has every lab, without answers and instructor's cells; links and pictures work."""

import html
import posixpath
import re
from collections import Counter
from html.parser import HTMLParser
from urllib.parse import unquote, urlsplit

import nbformat
import pytest

from labkit.exercises import catalogue
from labkit.system.errors import LabError
from labkit_author import notebooks, picture, site

pytestmark = pytest.mark.weekly

LABS = [pytest.param(lab, id=lab.name) for lab in catalogue.labs()]


def texts(cell):
    """Return a cell's source and its HTML outputs."""
    return [cell.source, *(output.get("data", {}).get("text/html", "") for output in cell.get("outputs", []))]


@pytest.mark.parametrize("info", LABS)
def test_a_lab_is_complete_except_for_instructors_cells(info):
    shown = site.lab(info)
    code = {cell.id: cell for cell in shown.cells if cell.cell_type == "code"}
    stored = nbformat.read(info.solution, as_version=4).cells
    for_instructor = [cell for cell in stored if notebooks.INSTRUCTOR in cell.metadata.get("tags", [])]
    assert for_instructor, "no cell is tagged `instructor`: what should the instructor know?"
    page = "\n".join(text for cell in shown.cells for text in texts(cell))
    for cell in for_instructor:
        assert cell.source not in page
    exercises = {exercise.cell: exercise.stub for exercise in info.exercises.values()}
    for cell in stored:
        if cell.cell_type == "code" and cell not in for_instructor:
            assert code[cell.id].source == exercises.get(cell.id, cell.source)
            assert len(code[cell.id].outputs) == len(cell.outputs) - ("open_lab(" in cell.source)  # its style


@pytest.mark.parametrize("info", LABS)
def test_answers_are_left_out(info):
    page = "\n".join(html.unescape(text) for cell in site.lab(info).cells for text in texts(cell))
    assert not re.search("<summary>(?!How to read it)", page)
    assert not [number for number, exercise in info.exercises.items() if exercise.solution in page]


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    """Prepare the folder that Sphinx reads."""
    folder = tmp_path_factory.mktemp("a site") / "prepared"
    site.prepare(folder)
    return folder


def test_all_labs_and_documents_exist(prepared):
    names = {str(page.relative_to(prepared)) for page in prepared.rglob("*")}
    assert names >= {f"notebooks/{lab.name}.ipynb" for lab in catalogue.labs()}
    pages = [f"docs/{title.lower()}/{page}.md" for title, pages in site.SECTIONS.items() for page in pages.split()]
    assert names >= {"index.md", *(posixpath.normpath(page) for page in pages if "*" not in page)}
    assert "README.md" not in names  # it is the front page


def test_the_front_page_is_the_readme(prepared):
    front = (prepared / "index.md").read_text()
    assert "{{" not in front
    for lab in catalogue.labs():
        assert f"](notebooks/{lab.name}.ipynb)" in front
    assert "./lab start" in front
    assert (prepared / picture.FILE).is_file()


@pytest.mark.parametrize("content", ["file", "folder"])
def test_other_files_are_not_replaced(tmp_path, content):
    out = tmp_path / "out"
    thesis = out if content == "file" else out / "thesis.md"
    thesis.parent.mkdir(exist_ok=True)
    thesis.write_text("mine")
    with pytest.raises(LabError, match="contains files other than a site"):
        site.build(out)
    assert thesis.read_text() == "mine"


class Html(HTMLParser):
    """A page's resources, links, ids and images."""

    def __init__(self, text):
        super().__init__()
        self.loads, self.links, self.ids, self.images = [], [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        if "id" in attributes:
            self.ids.append(attributes["id"])
        if tag == "img":
            self.images.append(attributes)
        if tag == "a":
            self.links.append(attributes.get("href", ""))
        elif tag == "link" and attributes.get("rel") not in ("index", "search", "next", "prev"):
            self.loads.append(attributes["href"])
        elif "src" in attributes:
            self.loads.append(attributes["src"])


@pytest.mark.slow
def test_the_site_is_complete_and_self_contained(built_site):
    out = built_site
    assert not (out / "of-another-day.html").exists()
    pages = {path: Html(path.read_text()) for path in out.rglob("*.html") if "_static" not in path.parts}
    assert len(pages) > len(LABS) + 6
    for path, page in pages.items():
        assert not [name for name, times in Counter(page.ids).items() if times > 1], path.name
        assert all(image.get("alt") and "image/png" not in image["src"] for image in page.images), path.name
        for address in [*page.loads, *page.links]:
            parts = urlsplit(address)
            if parts.scheme == "data":
                continue
            if parts.scheme or parts.netloc:
                assert address in page.links, f"{path.name} loads {address}"
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            assert target.is_file(), f"{path.name}: {address}"
            if target in pages and parts.fragment:
                assert unquote(parts.fragment) in pages[target].ids, f"{path.name}: {address}"
    styles = "".join(path.read_text() for path in out.rglob("*.css"))
    assert not re.search(r"""(url\(|@import)\s*['"]?(https?:)?//""", styles)
    assert not [path for path in out.rglob("*") if path.suffix in (".ipynb", ".md")]
