"""The report of an audit as a page: its content, and its safety against hostile names."""

import re
import subprocess
import sys
from html.parser import HTMLParser

import pytest
from harness.broker import environment
from outcomes import HOSTILE, broken, kept, nothing, silent

from eventstore import display
from spark.report.html_report import audit_page
from spark.runtime.errors import install_command

ALL = {"kept": kept, "broken": broken, "nothing": nothing, "silent": silent}
_VOID = {"meta", "link", "br", "hr", "img", "input"}
_HARMLESS = {
    "html", "head", "meta", "title", "style", "body", "main", "header", "footer", "section",
    "article", "h1", "h2", "h3", "p", "strong", "small", "span", "code", "bdi", "time", "dl", "dt",
    "dd", "div", "figure", "figcaption", "table", "thead", "tbody", "tr", "th", "td",
    "svg", "g", "defs", "path", "use", "text", "tspan", "clippath", "rect",
}  # fmt: skip


class Read(HTMLParser):
    """What a page consists of."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: list[tuple[str, str]] = []
        self.ids: list[str] = []
        self.open: list[str] = []
        self.texts: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes += [(key, value or "") for key, value in attrs]
        self.ids += [value or "" for key, value in attrs if key == "id"]
        if tag not in _VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        self.handle_endtag(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in _VOID:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open[-1:] != ["style"]:
            self.texts.append(data)


@pytest.fixture(scope="module")
def pages() -> dict[str, str]:
    return {name: audit_page(made()) for name, made in ALL.items()}


@pytest.mark.parametrize("which", ALL)
def test_nothing_runs_and_nothing_is_loaded(pages: dict[str, str], which: str) -> None:
    found = Read(pages[which])
    assert found.tags <= _HARMLESS
    assert not [key for key, _ in found.attributes if key.startswith("on") or key == "src"]
    links = [value for key, value in found.attributes if key.endswith("href")]
    assert all(link.startswith("#") for link in links)
    assert "@import" not in pages[which]
    assert re.findall(r"url\(([^#])", pages[which]) == []
    assert ("content", "default-src 'none'; style-src 'unsafe-inline'") in found.attributes


@pytest.mark.parametrize("which", ALL)
def test_ids_are_unique_and_references_exist(pages: dict[str, str], which: str) -> None:
    found = Read(pages[which])
    assert len(found.ids) == len(set(found.ids))
    referred = {value[1:] for key, value in found.attributes if key.endswith("href")}
    referred |= set(re.findall(r"url\(#([^)]*)\)", pages[which]))
    assert referred <= set(found.ids)


@pytest.mark.parametrize("which", ALL)
def test_all_of_it_is_printable(pages: dict[str, str], which: str) -> None:
    assert pages[which].replace("\n", "").isprintable()


def test_names_are_shown_and_cannot_break_out(pages: dict[str, str]) -> None:
    found = Read(pages["broken"])
    text = "\n".join(found.texts)
    for name in HOSTILE:
        assert display.name(name, 48) in text
    titles = [value for key, value in found.attributes if key == "title"]
    assert max(map(len, titles)) < 2100
    assert len(pages["broken"]) < 500_000


def test_a_page_shows_the_findings(pages: dict[str, str]) -> None:
    good, bad = "".join(Read(pages["kept"]).texts), "".join(Read(pages["broken"]).texts)
    assert "All guarantees were kept" in good
    assert "<h2>Violations" not in good
    assert "Guarantees were violated" in bad
    assert "12,345 violations" in bad
    assert "And 12,245 more." in bad
    assert "foldmq why --node n2 --position 98.0 --client reader-00007" in bad
    assert bad.count("foldmq why") == 100


def test_colours_are_those_of_the_page(pages: dict[str, str]) -> None:
    drawn = re.findall(r"<svg.*?</svg>", pages["kept"], re.DOTALL)
    assert len(drawn) == 4
    for plot in drawn:
        assert "var(--" in plot
        colours = set(re.findall(r"#[0-9a-f]{6}\b", plot))
        assert colours <= {"#000000"}
        assert 'aria-label="' in plot
    assert all("<text" in plot for plot in drawn)


def test_an_empty_log_gives_a_page_without_plots(pages: dict[str, str]) -> None:
    text = "".join(Read(pages["nothing"]).texts)
    assert "Nothing to audit" in text
    assert "<svg" not in pages["nothing"]
    assert "kept" not in text


def test_a_log_without_deliveries_has_a_note(pages: dict[str, str]) -> None:
    text = "".join(Read(pages["silent"]).texts)
    assert "there are no latencies" in text
    assert "No message was dropped" in text
    assert pages["silent"].count("<svg") == 1


def test_the_same_outcome_gives_the_same_page_in_another_process(pages: dict[str, str]) -> None:
    code = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "import outcomes; from spark.report.html_report import audit_page\n"
        "sys.stdout.write(audit_page(outcomes.kept()))"
    )
    folder = __file__.rpartition("/")[0]
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code, folder],
        capture_output=True,
        text=True,
        encoding="utf-8",
        env=environment(),
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == pages["kept"]


def test_without_matplotlib_the_error_is_one_line() -> None:
    code = (
        "import sys; sys.modules['matplotlib'] = None\n"
        "from spark.report.text_report import audit_text\n"
        "from spark.report.charts import require_matplotlib\n"
        "from protocol.errors import FoldmqError\n"
        "try: require_matplotlib()\n"
        "except FoldmqError as error: print(error.exit_code, error)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment(), check=True
    )
    assert done.stdout == f"69 the HTML page needs matplotlib: {install_command()}\n"
