"""Pages of results say what the results say, in a real browser, and are there for everybody."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any

import pytest

import llmir
from llmir.backends.export import units
from llmir.backends.export.page.bundle import result_page
from llmir.backends.export.page.plans import plans as told_of_plans
from llmir.backends.export.plan import reason
from llmir.base.errors import LlmirError
from tests import browser
from tests.commands import Run

from .page_results import RESULTS, SWEPT, made, saved
from .test_page_safety import HOSTILE

NAMES = sorted(RESULTS)
# Cards that are lower than what they hold.
LOW = """
const cards = [...document.querySelectorAll(".card")];
const low = cards.filter((card) => card.scrollHeight > card.clientHeight + 2);
return low.map((card) => card.outerHTML.slice(0, 80));
"""
WIDE = """
  const own = document.documentElement.clientWidth;
  return [...document.querySelectorAll("body *")].filter((node) => {
    const { right, width } = node.getBoundingClientRect();
    return width && right > own + 1 && !node.closest(".scroll, .unseen, svg");
  }).map((node) => `${node.tagName} ${node.id} ${node.className}`);
"""
# What a view is told, and what it shows.
TOLD = "return llmirTold.views.find(({ file }) => file === arguments[0])"
VIEW = "const view = llmirPage.views.find(({ data }) => data.file === arguments[0]);"
CELLS = f"""
  {VIEW}
  return [...view.lines.rows].map((row) => [...row.cells].map((cell) => cell.textContent));
"""


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("results")
    return {name: saved(name, folder / f"{name}.html") for name in NAMES}


@browser.real
@pytest.mark.parametrize("name", NAMES)
def test_it_says_nothing_and_asks_nobody(name: str, files: dict[str, Path], chromium: Any) -> None:
    browser.console(chromium)
    browser.requests(chromium)
    browser.opened(chromium, files[name])
    browser.settled(chromium)
    assert browser.console(chromium) == []
    assert browser.requests(chromium) == [files[name].as_uri()]


@browser.real
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("width", [1440, 800, 360])
def test_nothing_is_cut_or_scrolls_sideways(
    name: str, width: int, files: dict[str, Path], chromium: Any
) -> None:
    try:
        browser.resize(chromium, width)
        browser.opened(chromium, files[name])
        browser.settled(chromium)
        assert chromium.execute_script(WIDE) == []
        assert chromium.execute_script(LOW) == []
        assert chromium.execute_script("return document.documentElement.scrollWidth") <= width
    finally:
        browser.resize(chromium, 1440)


@browser.real
@browser.axe
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_axe_finds_no_serious_fault(name: str, theme: str, files: dict[str, Path], chromium: Any) -> None:
    browser.opened(chromium, files[name], f"#theme={theme}")
    browser.settled(chromium)
    assert browser.faults(chromium) == {}
    browser.console(chromium)


@browser.real
@pytest.mark.parametrize("name", HOSTILE)
def test_names_are_text_and_run_nothing(name: str, chromium: Any, tmp_path: Path) -> None:
    told = dict(told_of_plans(made("plan")))
    told |= {"model": name, "chips": [(name, name)], "answer": name, "lines": [name], "basis": name}
    told |= {"notes": [name], "about": [name] * 50}
    for view in told["views"]:
        view |= {"title": name, "note": name}
        for each in view.get("columns", ()):
            each |= {"title": name, "more": name}
        for row in view.get("rows", ()):
            row[0] = name
        for each in view.get("series", ()):
            each |= {"name": name, "points": [[*at[:3], name, name] for at in each["points"]]}
        for limit in view.get("limits", ()):
            limit |= {"words": name}
    (tmp_path / "page.html").write_text(result_page(told, 10**7, ""), encoding="utf-8")
    browser.console(chromium)
    browser.requests(chromium)
    browser.opened(chromium, tmp_path / "page.html")
    chromium.execute_script("document.querySelector('.mark').focus(); llmirPage.choose(0)")
    browser.settled(chromium)
    assert chromium.execute_script("return globalThis.run") is None
    assert chromium.execute_script("return document.body.textContent").count(name) > 20
    assert chromium.execute_script("return document.querySelectorAll('img, [onerror], [onload]').length") == 0
    assert browser.console(chromium) == []
    assert len(browser.requests(chromium)) == 1


@browser.real
def test_the_table_of_plans_is_that_of_the_plans(files: dict[str, Path], chromium: Any) -> None:
    plans = made("plan")
    browser.opened(chromium, files["plan"])
    told = chromium.execute_script(TOLD, "plans")
    keys = [column["key"] for column in told["columns"]]
    rows = [dict(zip(keys, row, strict=True)) for row in told["rows"]]
    for row, each in zip(rows, plans.shown, strict=True):
        assert row["devices"] == each.devices
        for of in ("ttft", "tpot"):
            spread = getattr(each.trial, f"{of}_s")
            assert [row[f"{of}_{stat}_s"] for stat in spread._fields] == list(spread)
        assert row["tokens_per_s_device"] == each.tokens_per_s_device
        why = plans.rejection(each)
        assert why is not None or each is plans.best
        assert row["why"] == reason(plans, plans.why(each), each)
    # A click sorts from the largest, then from the smallest, then not; CSV has what is shown.
    heads = chromium.execute_script(f"{VIEW} return view.heads.map((head) => head.firstChild)", "plans")
    at = keys.index("tpot_p99_s")
    orders = []
    for _ in range(3):
        chromium.execute_script("arguments[0].click()", heads[at])
        shown = chromium.execute_script(CELLS, "plans")
        text = chromium.execute_script(f"{VIEW} return view.csv()", "plans")
        read = list(csv.DictReader(io.StringIO(text)))
        assert [row["plan"] for row in read] == [cells[0] for cells in shown]
        orders.append([float(row["tpot_p99_s"]) for row in read])
    times = [each.trial.tpot_s.p99 for each in plans.shown]
    assert orders == [sorted(times, reverse=True), sorted(times), times]


@browser.real
def test_the_front_says_why_each_point_lost(files: dict[str, Path], chromium: Any) -> None:
    plans = made("plan")
    browser.opened(chromium, files["plan"])
    told = chromium.execute_script(TOLD, "front")
    front = [tuple(at[:2]) for each in told["series"] if each.get("line") for at in each["points"]]
    users, devices = plans.tokens_per_s_user, plans.tokens_per_s_device
    assert sorted(front) == sorted((users[i], devices[i]) for i in plans.front.tolist())
    beaten = [at for each in told["series"] if each.get("faint") for at in each["points"]]
    assert beaten
    for x, y, row, words, _ in beaten:
        assert row is None
        assert "beaten by" in words
        assert any(u >= x and d >= y and (u, d) != (x, y) for u, d in front)
    # By keys: a mark has the focus and says so, Enter chooses its row of the table.
    numbered = chromium.find_elements("css selector", '.mark[data-row="1"]')[0]
    chromium.execute_script("arguments[0].focus()", numbered)
    each = plans.shown[1]
    tip = chromium.find_element("css selector", ".tip").text
    assert plans.rejection(each) is not None
    assert reason(plans, plans.why(each), each) in " ".join(tip.split())
    chromium.execute_script(
        "arguments[0].dispatchEvent(new KeyboardEvent('keydown', { key: 'Enter', bubbles: true }))", numbered
    )
    chosen = chromium.execute_script("return document.querySelector('tr.chosen').dataset.row")
    assert chosen == "1"
    live = "return document.getElementById('live').textContent === llmirTold.about[1]"
    assert chromium.execute_script(live)


@browser.real
def test_latencies_against_the_rate_are_those_of_the_runs(files: dict[str, Path], chromium: Any) -> None:
    found = made("rates")
    browser.opened(chromium, files["rates"])
    for of in ("ttft", "tpot"):
        told = chromium.execute_script(TOLD, of)
        for each, stat in zip(told["series"], ("p50", "p90", "p99"), strict=True):
            assert each["name"].startswith(stat)
            lines = [(run.load.rate, getattr(run.latencies[of], stat)) for run in found.runs]
            assert [tuple(at[:2]) for at in each["points"]] == lines
        (limit,) = (limit["at"] for limit in told["limits"] if limit["axis"] == "y")
        assert limit == getattr(found.runs[0], f"max_{of}_s")
    told = chromium.execute_script(TOLD, "rates")
    keys = [column["key"] for column in told["columns"]]
    for row, run in zip(told["rows"], found.runs, strict=True):
        said = dict(zip(keys, row, strict=True))
        assert said["overloaded"] == run.overloaded
        assert said["goodput"] == run.goodput
        assert said["itl_p90_s"] == run.latencies["itl"].p90
    late = [n for n, run in enumerate(found.runs) if run.latencies["ttft"].p99 > run.max_ttft_s]
    wrong = (
        "return [...document.querySelectorAll('td.wrong')].map((cell) => Number(cell.parentNode.dataset.row))"
    )
    assert set(late) <= set(chromium.execute_script(wrong))


@browser.real
def test_a_run_over_time_is_that_of_its_requests(files: dict[str, Path], chromium: Any) -> None:
    run = made("run")
    browser.opened(chromium, files["run"])
    told = chromium.execute_script(TOLD, "ttft")
    line, named = (each["points"] for each in told["series"])
    waits = sorted(run.ttft_s.tolist())
    assert (line[0][0], line[-1][0]) == (waits[0], waits[-1])
    assert [at[0] for at in named] == [getattr(run.latencies["ttft"], stat) for stat in ("p50", "p90", "p99")]
    cells = chromium.execute_script(CELLS, "latencies")
    assert cells[0][1:] == [units.time(seconds) for seconds in run.latencies["ttft"]]


@browser.real
def test_a_timeline_is_that_of_the_steps(files: dict[str, Path], chromium: Any) -> None:
    job = made("trace")
    browser.opened(chromium, files["trace"])
    for number, step in enumerate((job.prefill, job.decode)):
        script = "return llmirPage.views.find(({ data }) => data.file === arguments[0]).slices"
        told = chromium.execute_script(script, f"timeline-{number}")
        slices = step.timeline()
        assert len(told) == len(slices)
        for own, slice in zip(told, slices, strict=True):
            for key in (
                "op",
                "path",
                "stage",
                "rank",
                "micro_batch",
                "start_s",
                "end_s",
                "bound",
                "error",
                "flops",
            ):
                assert own[key] == getattr(slice, key)
        assert browser.off(max(own["end_s"] for own in told), step.time_s) < browser.OFF
        rows = chromium.execute_script(TOLD, f"ops-{number}")["rows"]
        assert browser.off(sum(row[3] for row in rows), 2 * step.time_s) < browser.OFF  # of both stages


@browser.real
def test_a_timeline_is_drawn_to_scale_and_enlarged_by_keys(files: dict[str, Path], chromium: Any) -> None:
    job = made("trace")
    browser.opened(chromium, files["trace"])
    view = "const view = llmirPage.views[0];"
    widths = "[...view.place.querySelectorAll('.run rect')].map((rect) => Number(rect.getAttribute('width')))"
    runs = "[0, 1].flatMap((stage) => view.runs(stage)).map(({ start, end }) => end - start)"
    wide, seconds = chromium.execute_script(f"{view} return [{widths}, {runs}]")
    scale = sum(wide) / sum(seconds)
    assert all(abs(w - max(s * scale, 0.5)) < 0.5 for w, s in zip(wide, seconds, strict=True))
    layer = [s for s in job.prefill.timeline() if s.path.startswith("stage0.layer[8]") and not s.micro_batch]
    near = chromium.execute_script(f"{view} return [view.from, view.to]")
    assert near == [layer[0].start_s, layer[-1].end_s]
    chromium.execute_script(f"{view} view.place.querySelector('.near').focus()")
    assert layer[0].path in chromium.execute_script(f"{view} return view.about.textContent")
    enter = "new KeyboardEvent('keydown', { key: 'Enter', bubbles: true })"
    chromium.execute_script(f"{view} view.place.querySelector('.near').dispatchEvent({enter})")
    near = chromium.execute_script(f"{view} return [view.from, view.to]")
    assert near[0] <= layer[0].start_s < layer[0].end_s <= near[1] < layer[-1].end_s
    chromium.execute_script(f"{view} view.look(0, view.data.end)")
    assert chromium.execute_script(f"{view} return view.to") == job.prefill.time_s


# Labels of slices: what covers another, or is crossed by the line of another.
LEADERS = """
  const view = llmirPage.views[0], all = [...view.place.querySelectorAll(".leader")];
  const boxes = all.map((node) => node.querySelector("text").getBoundingClientRect());
  const lines = all.map((node) => node.querySelector("path").getBoundingClientRect());
  const over = (a, b) => a.left < b.right && b.left < a.right && a.top < b.bottom - 2 && b.top < a.bottom - 2;
  const bad = [];
  boxes.forEach((box, i) => boxes.forEach((other, j) => {
    if (i < j && over(box, other)) bad.push([all[i].textContent, "covers", all[j].textContent]);
    if (i !== j && over(box, lines[j])) bad.push([all[i].textContent, "is crossed"]);
  }));
  const whole = view.root.getBoundingClientRect();
  for (const box of boxes) if (box.left < whole.left || box.right > whole.right) bad.push("outside");
  return { bad, words: all.map((node) => node.textContent) };
"""


@browser.real
@pytest.mark.parametrize("width", [1440, 800, 360])
def test_slices_without_room_have_labels_that_cross_nothing(
    width: int, files: dict[str, Path], chromium: Any
) -> None:
    job = made("trace")
    own = [s for s in job.prefill.timeline() if s.stage == 0]
    try:
        browser.resize(chromium, width)
        browser.opened(chromium, files["trace"])
        browser.settled(chromium)
        for way in (0, 0.3, 0.3, -0.7):
            chromium.execute_script(f"llmirPage.views[0].move({way})")
            found = chromium.execute_script(LEADERS)
            assert not found["bad"]
            if not way:
                first = found["words"]
        # The page takes a time as a difference, which rounds differently in the last digit.
        seconds = [(s.path.split(".")[-1], time) for s in own for time in (s.time_s, s.end_s - s.start_s)]
        times = {f"{name} {units.time(time)}" for name, time in seconds}
        alone = [words.split(" · ")[0] for words in first if " more " not in words]
        assert first and set(alone) <= times
    finally:
        browser.resize(chromium, 1440)


# Words of limits that lie over a mark, or over each other.
COVERED = """
  const boxes = (of) => [...document.querySelectorAll(of)].map((node) => node.getBoundingClientRect());
  const words = boxes(".limit-text, .here-text"), marks = boxes(".series:not(.faint) .mark .shape");
  const over = (a, b) => a.left < b.right && b.left < a.right && a.top < b.bottom && b.top < a.bottom;
  const covers = (one, i) => [...marks, ...words.slice(i + 1)].some((b) => over(one, b));
  return [words.length, words.filter(covers).length];
"""


@browser.real
@pytest.mark.parametrize("width", [1440, 360])
@pytest.mark.parametrize("name", ["plan", "rates"])
def test_words_of_limits_cover_no_mark(name: str, width: int, files: dict[str, Path], chromium: Any) -> None:
    try:
        browser.resize(chromium, width)
        browser.opened(chromium, files[name])
        browser.settled(chromium)
        found, covered = chromium.execute_script(COVERED)
        assert found and not covered
    finally:
        browser.resize(chromium, 1440)


@browser.real
def test_what_crosses_between_stages_is_what_the_ops_send(files: dict[str, Path], chromium: Any) -> None:
    browser.opened(chromium, files["trace"])
    ends = [s for s in made("trace").prefill.timeline() if s.path == "stage0.send"]
    script = "return [...llmirPage.views[0].place.querySelectorAll('.sends')].map((node) => node.textContent)"
    said = chromium.execute_script(script)
    assert len(said) == len(ends) > 1
    assert all(words == f"{units.bytes(s.comm_bytes)} a GPU" for words, s in zip(said, ends, strict=True))


@browser.real
def test_a_sweep_is_its_rows_and_any_column_is_drawn(files: dict[str, Path], chromium: Any) -> None:
    found = made("sweep")
    browser.opened(chromium, files["sweep"])
    told = chromium.execute_script(TOLD, "rows")
    keys = [column["key"] for column in told["columns"]]
    for row, own in zip(told["rows"], found.rows(), strict=True):
        said = dict(zip(keys, row, strict=True))
        assert {key: own[key] for key in keys if key in own} == {k: v for k, v in said.items() if k in own}
        if own["time_s"]:
            assert said["tokens_per_s"] == own["batch"] / own["time_s"]
    picked = "const view = llmirPage.views[0]; const [x, y, by] = arguments;"
    chart = f"{picked} view.pick('x', x); view.pick('y', y); view.pick('by', by); return view.chart().series"
    series = chromium.execute_script(chart, "batch", "time_s", "tp")
    drawn = sorted(tuple(at[:2]) for each in series for at in each["points"])
    assert drawn == sorted((row["batch"], row["time_s"]) for row in found.rows() if row["time_s"])
    for each in series:
        for thread in each.get("threads") or ():
            assert [at[0] for at in thread] == [1, 4, 16, 64, 256][: len(thread)]
    assert {each["name"].removesuffix(", does not fit") for each in series} == {"tp 1", "tp 2"}


@browser.real
def test_a_sweep_opens_on_the_front_of_each_device_and_is_filtered_by_axes(
    files: dict[str, Path], chromium: Any
) -> None:
    """The front is what no row of the device that fits beats in both, point against point."""
    rows = [row for row in made("sweep").rows() if row["time_s"] and row["fits"]]
    browser.opened(chromium, files["sweep"])

    def drawn() -> dict[str, list[list[float]]]:
        series = chromium.execute_script("return llmirPage.views[0].chart().series")
        return {each["name"]: [at[:2] for at in each["points"]] for each in series if not each.get("faint")}

    def expected(**only: object) -> dict[str, list[list[float]]]:
        fronts: dict[str, list[list[float]]] = {}
        for row in rows:
            if all(row[name] == value for name, value in only.items()):
                tokens = row["batch"] / row["time_s"]
                at = [1 / row["time_s"], tokens / row["devices"]]
                fronts.setdefault(f"front of device {row['hw']}", []).append(at)
        return {
            name: sorted(p for p in own if not any(q != p and q[0] >= p[0] and q[1] >= p[1] for q in own))
            for name, own in fronts.items()
        }

    def same(only: dict[str, object]) -> None:
        found, wanted = drawn(), expected(**only)
        assert found.keys() == wanted.keys()
        for name, own in found.items():
            assert [at for point in own for at in point] == pytest.approx(
                [at for point in wanted[name] for at in point]
            )

    same({})
    filters = chromium.find_elements("css selector", ".picks [id*='-only-']")
    assert [each.get_attribute("id").rpartition("-")[2] for each in filters] == ["hw", "tp", "batch"]
    for number, only in ((1, {"tp": 1}), (0, {"tp": 1, "hw": "h100-sxm"})):
        filters[number].find_elements("css selector", "option")[1].click()
        same(only)


@browser.real
def test_a_plan_page_starts_with_three_lines(files: dict[str, Path], chromium: Any) -> None:
    browser.opened(chromium, files["plan"])
    lines = chromium.find_element("css selector", ".answer").text.splitlines()
    assert "H100-SXM" in lines[0] and "per hour" in lines[1] and "requests/s" in lines[2]
    assert all("error of the estimate" in line for line in lines[3:])  # only doubts follow


def test_what_pages_are_refused(run: Run, tmp_path: Path) -> None:
    job = made("trace")
    for how, why in (({"rank": 0}, "rank: a page has"), ({"max_size": 10}, "raise --max-size")):
        with pytest.raises(LlmirError, match=why):
            llmir.trace(job, tmp_path / "x.html", **how)
    with pytest.raises(LlmirError, match="max_size: applies only to a page"):
        llmir.trace(job, tmp_path / "x.json", max_size=10)
    with pytest.raises(LlmirError, match="leave some values out"):
        llmir.sweep("llama3.2-1b", {**SWEPT, "tp": 1}).page(max_size=10)
    assert not list(tmp_path.glob("x.*"))


@pytest.mark.slow
def test_pages_are_no_larger_than_asked_and_alike(run: Run, tmp_path: Path) -> None:
    plans = made("plan")
    page = plans.page()
    assert page == plans.page()
    assert page == llmir.save(plans, tmp_path / "plan.html").read_text("utf-8")
    assert len(page.encode()) < 250_000
    with pytest.raises(LlmirError, match=r"more than 1,000; ask for fewer .*, or raise --max-size"):
        plans.page(max_size=1000)
    asked = ("plan", "tiny.json", "--rate", "1", "--prompt", "8", "--generate", "4", "--requests", "100")
    done = run(*asked, "--gpus", "1", "-o", "p.html")
    assert (done.code, done.out) == (0, "")
    assert "default-src 'none'" in (tmp_path / "p.html").read_text("utf-8")
    done = run(*asked, "--format", "html", "-o", "h.html")
    assert done.code == 0
    assert "<script" not in (tmp_path / "h.html").read_text("utf-8")
    assert "--max-size: applies only to a page" in run(*asked, "--max-size", "1MB").err
    assert "raise --max-size" in run(*asked, "--max-size", "1kB", "-o", "q.html").err
    assert not (tmp_path / "q.html").exists()
