"""A built site, as a reader of its HTML sees it."""

from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path

ROOT = Path(__file__).parents[1]
#: What is read without being asked for, by element; links are only offered.
FETCHED = {"img": "src", "link": "href", "script": "src", "source": "src", "iframe": "src"}


@dataclass
class Page(HTMLParser):
    """What a page leads to, fetches and can be led to."""

    links: list[str] = field(default_factory=list)
    #: Of the links, those in the page's own text: no navigation, no marks beside headings.
    own_links: list[str] = field(default_factory=list)
    fetched: list[str] = field(default_factory=list)
    anchors: set[str] = field(default_factory=set)
    headings: list[str] = field(default_factory=list)
    text: list[str] = field(default_factory=list)
    _open: list[str] = field(default_factory=list)
    _in_article: bool = False

    def __post_init__(self) -> None:
        super().__init__()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.anchors.update(given[name] for name in ("id", "name") if name in given)
        if tag in ("a", "use") and "href" in given:
            self.links.append(given["href"])
            if tag == "a" and self._in_article and "headerlink" not in given.get("class", ""):
                self.own_links.append(given["href"])
        self._in_article = self._in_article or tag == "article"
        if tag in FETCHED and FETCHED[tag] in given:
            self.fetched.append(given[FETCHED[tag]])
        if tag in ("h1", "h2"):
            self.headings.append("")
        if tag in ("h1", "h2", "pre", "code", "script", "style"):
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if self._open and self._open[-1] == tag:
            self._open.pop()
        self._in_article = self._in_article and tag != "article"

    def handle_data(self, data: str) -> None:
        if not self._open:
            self.text.append(data)
        elif self._open[-1] in ("h1", "h2"):
            self.headings[-1] += data


@dataclass(frozen=True)
class Site:
    """A built site, and its pages by their paths."""

    folder: Path
    pages: dict[Path, Page]

    @classmethod
    def at(cls, folder: Path) -> "Site":
        """Read all pages."""
        return cls(folder, {path: read(path) for path in folder.rglob("*.html")})

    def page(self, name: str) -> Page:
        """Return the page at a path below the site."""
        return self.pages[self.folder / name]


def read(path: Path) -> Page:
    page = Page()
    page.feed(path.read_text(encoding="utf-8"))
    return page
