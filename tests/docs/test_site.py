"""The site is whole: it builds without a warning, leads nowhere in vain, and fetches nothing."""

import json
import re
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

pytest.importorskip("torch", reason="the extra 'sim' is not installed")
pytest.importorskip("sphinx", reason="the extra 'docs' is not installed")

from markdown_it import MarkdownIt
from sphinx.search.en import SearchEnglish
from sphinx.util.inventory import InventoryFile

import fedcohort
from built_site import ROOT, Site
from experiment_file_page import TABLES
from fedcohort.cli.app import app
from fedcohort.designs import RECIPES
from public_names import exported, home, packages
from repository_links import DOCS, PAGES

pytestmark = pytest.mark.slow  # the site takes half a minute to build

SOURCE = Path(fedcohort.__file__).parent
#: Words that newcomers search for.
SEARCHED = ("dropout", "straggler", "stragglers", "availability", "oracle", "sketch")
#: What is left of markup that was not understood.
LEFT_OVER = re.compile(r":(?:class|func|meth|data|mod|math):`|\$\$|\\(?:frac|sum|Delta)|<!-- made")


def test_every_page_of_the_sources_is_there(site: Site) -> None:
    sources = {page.relative_to(ROOT / "docs") for page in (ROOT / "docs").rglob("*.md")}

    assert {page.with_suffix(".html") for page in sources} <= {
        page.relative_to(site.folder) for page in site.pages
    }


def test_no_link_of_the_sources_is_dropped(site: Site) -> None:
    shown = {page: file for file, page in PAGES.items()}
    pages = sorted((ROOT / "docs").rglob("*.md"))
    written = {page: links_of(shown.get(page, page)) for page in pages}
    built = {page: site.page(f"{page.relative_to(DOCS).with_suffix('.html')}") for page in pages}

    assert sum(map(len, written.values())) > 500
    assert {
        page.name: links
        for page, links in written.items()
        if len(links) != len(built[page].own_links)
    } == {}


def links_of(file: Path) -> list[str]:
    """Return the targets of a file's links, as a parser of Markdown reads it."""
    tokens = MarkdownIt().enable("table").parse(file.read_text(encoding="utf-8"))
    inline = [child for token in tokens for child in token.children or ()]
    return [str(token.attrs["href"]) for token in inline if token.type == "link_open"]


def test_no_link_leads_nowhere(site: Site) -> None:
    dead = []
    for path, page in site.pages.items():
        for link in page.links + page.fetched:
            parts = urlsplit(link)
            if parts.scheme in ("http", "https", "mailto", "data"):
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if not target.is_file():
                dead.append(f"{path.name}: {link}")
                continue
            anchors = site.pages[target].anchors if target in site.pages else set()
            if parts.fragment and unquote(parts.fragment) not in anchors:
                dead.append(f"{path.name}: {link}")

    assert sum(len(page.links) for page in site.pages.values()) > 1000
    assert dead == []


def test_nothing_is_fetched_from_elsewhere(site: Site) -> None:
    fetched = [link for page in site.pages.values() for link in page.fetched]
    styles = [path.read_text(encoding="utf-8") for path in site.folder.rglob("*.css")]

    assert [link for link in fetched if urlsplit(link).netloc] == []
    assert [
        found for style in styles for found in re.findall(r"url\(['\"]?(?:https?:)?//", style)
    ] == []
    assert [found for style in styles for found in re.findall(r"@import[^;]*//", style)] == []


def test_no_markup_is_left_over(site: Site) -> None:
    found = {
        path.name: LEFT_OVER.findall(text)
        for path, page in site.pages.items()
        if LEFT_OVER.search(text := "".join(page.text))
    }

    assert found == {}


@pytest.mark.parametrize("name", RECIPES)
def test_every_design_has_its_page_with_a_plot(site: Site, name: str) -> None:
    path = site.folder / "reference" / "designs" / f"{name}.html"
    kind = RECIPES[name].__name__
    headings = [heading.rstrip("¶#") for heading in site.pages[path].headings[1:]]
    plot = site.folder / "_images" / f"{name}.svg"

    assert headings == [
        "The law",
        "Guarantees",
        "Cost",
        "When not to use it",
        "Example",
        "In experiment files",
    ]
    assert site.pages[path].fetched.count(f"../../_images/{name}.svg") == 1
    assert plot.read_text(encoding="utf-8").count("<title>") == 20
    assert {kind.lower(), f"{kind}Design".lower()} <= {each.lower() for each in subheadings(path)}


def subheadings(path: Path) -> list[str]:
    return re.findall(r"<h3>([\w.]+)<", path.read_text(encoding="utf-8"))


def test_every_package_with_public_names_has_a_page() -> None:
    sources = [path for path in SOURCE.rglob("*.py") if "\n__all__ = " in path.read_text()]
    found = [".".join(path.parent.relative_to(SOURCE.parent).parts) for path in sources]

    described = {name for package in packages() for name in exported(package)}
    others = set(found) - set(packages())

    assert len(found) >= 8
    assert [each for each in sorted(others) if not set(exported(each)) <= described] == []


@pytest.mark.parametrize("package", packages())
def test_every_public_name_is_described(site: Site, package: str) -> None:
    inventory = InventoryFile.loads((site.folder / "objects.inv").read_bytes(), uri="").data
    kinds = ("class", "function", "data", "exception", "module")
    described = {
        name: item.uri for kind in kinds for name, item in inventory.get(f"py:{kind}", {}).items()
    }
    path = site.folder / "reference" / "api" / f"{package.removeprefix('fedcohort.')}.html"
    linked = {str((path.parent / link).resolve()) for link in site.pages[path].links}
    linked |= {f"{path}{link}" for link in site.pages[path].links if link.startswith("#")}
    homes = {home(f"{package}.{name}") for name in exported(package)}

    assert homes
    assert sorted(homes - set(described)) == []
    assert [
        name for name in sorted(homes) if str(site.folder / described[name]) not in linked
    ] == []


def test_the_search_knows_the_words_of_newcomers(site: Site) -> None:
    index = json.loads(
        (site.folder / "searchindex.js").read_text(encoding="utf-8")[len("Search.setIndex(") : -1]
    )
    # The index has the stems of words.
    stems = {SearchEnglish({}).stem(word) for word in SEARCHED}
    glossary = index["docnames"].index("glossary")

    assert [stem for stem in stems if glossary not in listed(index["titleterms"][stem])] == []
    for word in ("dropout", "stragglers", "availability"):
        pages = {index["docnames"][entry[0]] for entry in index["indexentries"][word]}
        assert len(pages) >= 2, word


def listed(pages: int | list[int]) -> list[int]:
    return [pages] if isinstance(pages, int) else pages


def test_every_command_and_setting_is_described(site: Site) -> None:
    commands = site.page("reference/command-line.html").headings
    settings = (site.folder / "reference" / "experiment-file.html").read_text(encoding="utf-8")

    registered = [
        command.callback.__name__ for command in app.registered_commands if command.callback
    ]
    assert [f"fedcohort {name}" for name in registered] == [
        heading.rstrip("¶#") for heading in commands[1:]
    ]
    keys = {key for models in TABLES.values() for model in models for key in model.known_keys()}
    assert [key for key in sorted(keys) if f">{key}</span></code>" not in settings] == []


def test_results_and_changes_are_on_the_site_with_their_pictures(site: Site) -> None:
    results = site.page("results/index.html")
    pictures = re.findall(r"!\[", (ROOT / "results" / "README.md").read_text(encoding="utf-8"))

    assert len([link for link in results.fetched if link.endswith(".png")]) == len(pictures) > 0
    assert site.page("changelog.html").headings[0].startswith("Changelog")


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md", "results/README.md"])
def test_links_of_repository_pages_hold(name: str) -> None:
    text = (ROOT / name).read_text(encoding="utf-8")
    links = [link for link in re.findall(r"\]\(([^)#\s]+)", text) if not urlsplit(link).scheme]

    assert [link for link in links if not (ROOT / name).parent.joinpath(link).exists()] == []
