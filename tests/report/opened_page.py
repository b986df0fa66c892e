"""A page in a real browser: what it shows, what it complains about and what it asks for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

#: Every shown plot with what its picture holds: paths of lines, points and bars, or images.
DRAWN = """() => Object.fromEntries([...document.querySelectorAll("figure[data-plot]")]
  .filter((figure) => figure.getClientRects().length && figure.querySelector(".main-svg"))
  .map((figure) => [figure.dataset.plot, figure.querySelectorAll(
    ".js-line, .point path, path.point, .points path, .hm image, .heatmaplayer image").length]))"""
TRACES = """(plot) => document.querySelector(`[data-plot=${plot}] > div`).data
  .filter((trace) => trace.name).map((trace) => [trace.name, [...trace.y]])"""
LAYOUT = "([plot, axis]) => document.querySelector(`[data-plot=${plot}] > div`).layout[axis].type"
#: All that a test may change: colours, focus, scrolling, controls, words and what plots show.
STATE = """() => [
  {...document.documentElement.dataset}, document.activeElement.id, scrollY,
  [...document.querySelectorAll("select, input")].map((one) => [one.id, one.value, one.checked]),
  document.querySelector("main").innerText,
  JSON.stringify([...document.querySelectorAll(".js-plotly-plot")].map((plot) => {
    const full = plot._fullLayout;
    const axes = Object.keys(full).filter((name) => /^[xy]axis/.test(name));
    const texts = [...plot.querySelectorAll("svg text")].map((each) => each.textContent);
    return [plot.data, full.width, full.font.color, axes.map((name) => full[name].type), texts];
  })),
]"""


class Opened:
    """A page in a profile of its own, and what went wrong or out."""

    def __init__(self, browser: Any, path: Path, **options: Any) -> None:
        self.context = browser.new_context(**options)
        self.page = self.context.new_page()
        self.complaints: list[str] = []
        self.requests: list[str] = []
        self.page.on("console", lambda message: self.complaints.append(message.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.route("**/*", self._only_files)
        self.page.goto(path.as_uri())
        self._first, self._first_complaints = self.state(), [*self.complaints]
        self._first_requests = [*self.requests]

    def _only_files(self, route: Any) -> None:
        if route.request.url.startswith(("file:", "data:", "blob:")):
            route.continue_()
        else:
            self.requests.append(route.request.url)
            route.abort()

    def state(self) -> list[object]:
        return list(self.with_all_plots(STATE))

    def with_all_plots(self, script: str, *arguments: object) -> Any:
        """Evaluate a script after also plots that are out of sight are drawn."""
        self.page.evaluate("drawStale()")
        return self.page.evaluate(script, *arguments)

    def restored(self) -> bool:
        """Set all controls back; return whether the page is as it was when it was opened."""
        self.complaints[:], self.requests[:] = self._first_complaints, self._first_requests
        if self.state() == self._first:
            return True
        self.page.check("#smoothed")
        self.page.uncheck("#log")
        for box in self.page.locator("#designs input").all():
            box.check()
        self.page.select_option("#panel", index=0)
        self.page.evaluate("document.activeElement.blur(); scrollTo(0, 0)")
        return self.state() == self._first

    def drawn(self) -> dict[str, int]:
        return dict(self.with_all_plots(DRAWN))

    def traces(self, plot: str) -> dict[str, list[float]]:
        return dict(self.with_all_plots(TRACES, plot))

    def text(self, selector: str) -> str:
        return str(self.page.inner_text(selector))
