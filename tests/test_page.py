"""Pages in a real browser: they compute what `workload` says, ask nobody, and run no name."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import llmir
from llmir.backends.export import units
from llmir.errors import InputError

from . import browser
from .commands import Run, runner

LACKS = browser.missing()
if LACKS and browser.REQUIRED:
    raise RuntimeError(f"LLMIR_REQUIRE_BROWSER=1, and {LACKS}")
real = pytest.mark.skipif(bool(LACKS), reason=LACKS or "there is a browser")

AXES: dict[str, Any] = {"hw": ("h100-sxm", "h200"), "tp": (1, 2, 3), "weights": ("bf16", "fp8")}
START = {"batch": 32, "prompt": 4000, "generate": 500}
OFF = 1e-12
FIGURES = ("ttft_s", "tpot_s", "e2e_s", "output_tokens_per_s")

# The figures of a set-up at some sizes, by the code of the page, as its strip has them.
PRICED = """
const [setup, batch, prompt, generate] = arguments;
const { figures, memory, steps } = llmirPage.priced({ setup, batch, prompt, generate });
const ops = (step) => step && { time_s: step.time_s, ideal_time_s: step.ideal_time_s, error: step.error,
  ops: step.ops.map(({ name, time_s, ideal_time_s, flops, read_bytes, write_bytes, bound, basis, error }) =>
    ({ name, time_s, ideal_time_s, flops, read_bytes, write_bytes, bound, basis, error })) };
return { figures, memory, prefill: ops(steps.prefill), decode: ops(steps.decode) };
"""


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "page.html"
    path.write_text(llmir.page("qwen3-32b", AXES, **START), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    with browser.browser() as driver:
        yield driver


def off(found: Any, expected: Any) -> float:
    if found is None or expected is None or isinstance(expected, (str, bool)):
        return 0.0 if found == expected else math.inf
    return abs(found - expected) / max(abs(expected), 1e-30)


def compared(priced: Any, job: Any) -> float:
    """The largest relative difference of a page's figures to a workload's."""
    pairs = [(priced["figures"][name], getattr(job, name)) for name in FIGURES]
    memory = priced["memory"]
    pairs += [(memory["bytes"], job.peak_bytes(job.batch)), (memory["fits"], job.fits)]
    pairs += [(memory["largest"], job.max_batch), (memory["capacity"], job.capacity_bytes)]
    for name in ("prefill", "decode"):
        step, own = getattr(job, name), priced[name]
        assert (step is None) == (own is None)
        if step is None:
            continue
        pairs += [(own[key], getattr(step, key)) for key in ("time_s", "ideal_time_s", "error")]
        assert [op["name"] for op in own["ops"]] == [op.name for op in step.work]
        for one, op in zip(own["ops"], step.work, strict=True):
            pairs += [
                (value, str(op.basis) if key == "basis" else getattr(op, key)) for key, value in one.items()
            ]
    return max(off(found, expected) for found, expected in pairs)


SETTLED = "setTimeout(() => requestAnimationFrame(() => requestAnimationFrame(arguments[0])), 450)"


def settled(driver: Any) -> None:
    """Waits until all is drawn, and the address is that of what is shown."""
    driver.execute_async_script(SETTLED)


def program_of(model: str, setup: dict[str, Any]) -> llmir.Program:
    """A program by the passes themselves, in the order that the command line has."""
    passes = [f"quantize{{weights={setup['weights']}}}"] if "weights" in setup else []
    passes += [llmir.pipeline_of("vllm")]
    passes += [f"shard{{tp={setup['tp']}}}"] if setup.get("tp", 1) > 1 else []
    return llmir.run(llmir.load(model), ",".join(passes))


@real
def test_figures_are_those_of_workload(page: Path, chromium: Any) -> None:
    browser.opened(chromium, page)
    setups = chromium.execute_script("return llmirPage.setups.map(({ values, why }) => ({ values, why }))")
    draw, worst = random.Random(0), 0.0
    legal = [i for i, setup in enumerate(setups) if not setup["why"]]
    assert len(setups) == 12
    assert len(legal) == 8
    programs = {i: program_of("qwen3-32b", setups[i]["values"]) for i in legal}
    for _ in range(50):
        setup = draw.choice(legal)
        at = (
            draw.choice((1, 2, 7, 32, 100, 256, 1500)),
            int(2 ** draw.uniform(0, 17)),
            draw.choice((1, 2, 9, 300)),
        )
        job = llmir.workload(
            programs[setup], setups[setup]["values"]["hw"], batch=at[0], prompt=at[1], generate=at[2]
        )
        worst = max(worst, compared(chromium.execute_script(PRICED, setup, *at), job))
    assert worst < OFF


@real
@pytest.mark.parametrize(
    ("model", "axes"),
    [
        ("llama3.1-405b", {"tp": 8, "pp": 2, "micro_batches": (1, 2)}),
        ("deepseek-v3", {"hw": "h200", "tp": 8, "ep": 8}),
        ("gpt-oss-20b", {"hw": "a100", "engine": ("sglang", "trtllm")}),
        ("llama-4-scout-17b-16e", {"hw": "h200", "tp": 8, "cost": "ideal"}),
        ("gemma-3-4b", {"hw": ("mi300x", "l4"), "cost": "ideal"}),
        ("mamba-1.4b", {}),
    ],
)
def test_figures_of_other_families(model: str, axes: dict[str, Any], chromium: Any, tmp_path: Path) -> None:
    from llmir import hw
    from llmir.reported import setups

    (tmp_path / "page.html").write_text(llmir.page(model, axes), encoding="utf-8")
    browser.opened(chromium, tmp_path / "page.html")
    for number, setup in enumerate(setups(model, axes)):
        assert setup.program is not None
        parts = setup.program.micro_batches
        for batch, prompt, generate in ((1, 1, 1), (8, 3000, 40), (48, 20_001, 2)):
            how = {name: setup.values[name] for name in ("engine", "cost") if name in setup.values}
            at = {"batch": batch * parts, "prompt": prompt, "generate": generate}
            job = llmir.workload(setup.program, hw.load(setup.values["hw"]), **at, **how)
            assert compared(chromium.execute_script(PRICED, number, *at.values()), job) < OFF


@real
def test_it_says_nothing_and_asks_nobody(page: Path, chromium: Any) -> None:
    browser.console(chromium)
    browser.requests(chromium)
    browser.opened(chromium, page)
    assert browser.console(chromium) == []
    assert browser.requests(chromium) == [page.as_uri()]


@real
def test_the_strip_says_what_the_sliders_ask_for(page: Path, chromium: Any) -> None:
    browser.opened(chromium, page, "#setup=0&batch=8&prompt=1000&generate=100")
    from selenium.webdriver.common.by import By
    from selenium.webdriver.common.keys import Keys

    chromium.find_element(By.ID, "range-batch").send_keys(Keys.ARROW_RIGHT)
    chromium.execute_async_script("requestAnimationFrame(() => requestAnimationFrame(arguments[0]))")
    batch = int(chromium.execute_script("return llmirPage.state.batch"))
    assert batch > 8
    job = llmir.workload(
        program_of("qwen3-32b", {"weights": "bf16"}), "h100-sxm", batch=batch, prompt=1000, generate=100
    )
    said = chromium.find_element(By.ID, "tpot_s").text
    assert units.time(float(job.tpot_s or 0)) in said
    assert chromium.find_element(By.ID, "batch").get_attribute("value") == str(batch)


@real
def test_a_bad_number_is_marked_and_the_picture_stays(page: Path, chromium: Any) -> None:
    from selenium.webdriver.common.by import By

    browser.opened(chromium, page)
    box, before = chromium.find_element(By.ID, "prompt"), chromium.find_element(By.ID, "ttft_s").text
    typed = "const [box, said] = arguments; box.value = said; box.dispatchEvent(new Event('input'))"
    for bad in ("", "0", "-5", "1.5", "x", "1e3", "99999999"):
        chromium.execute_script(typed, box, bad)
        assert box.get_attribute("aria-invalid") == "true"
        assert "whole number" in chromium.find_element(By.ID, "prompt-why").text
    assert chromium.find_element(By.ID, "ttft_s").text == before
    box.clear()
    box.send_keys("2,000")
    assert box.get_attribute("aria-invalid") is None
    assert chromium.execute_script("return llmirPage.state.prompt") == 2000


@real
def test_a_split_that_cannot_be_is_greyed_with_the_reason(page: Path, chromium: Any) -> None:
    browser.opened(chromium, page)
    script = (
        "return [...document.getElementById('menu-split').options].map((o) => [o.value, o.disabled, o.title])"
    )
    found = {value: (disabled, why) for value, disabled, why in chromium.execute_script(script)}
    assert [value for value, (disabled, _) in found.items() if disabled] == ["tp 3"]
    assert "cannot be split 3 ways" in found["tp 3"][1]


@real
def test_the_address_holds_what_is_shown(page: Path, chromium: Any) -> None:
    from selenium.webdriver.support.ui import Select

    browser.opened(chromium, page, "#batch=16&prompt=777&generate=9")
    Select(chromium.find_element("id", "menu-split")).select_by_visible_text("tp 2")
    settled(chromium)
    figures = chromium.find_element("id", "figures").text
    hash = chromium.execute_script("return location.hash")
    browser.opened(chromium, page, hash)
    assert chromium.find_element("id", "figures").text == figures
    assert chromium.execute_script("return [llmirPage.state.batch, llmirPage.state.prompt]") == [16, 777]
    for bad in ("#batch=0", "#setup=99", "#setup=x&batch=-1", "#pin=1,2", "#op=%00&phase=z", "#%%%"):
        browser.opened(chromium, page, bad)
    assert browser.console(chromium) == []


@real
def test_a_choice_is_one_in_graph_roofline_and_table(page: Path, chromium: Any) -> None:
    chosen = """
      const texts = (of) => [...document.querySelectorAll(of)].map((node) => node.textContent);
      const bubbles = document.querySelectorAll(".bubble.chosen").length;
      return [texts(".op.chosen .name"), texts("tr.chosen th"), texts("#op h2"), bubbles];
    """
    browser.opened(chromium, page)
    clicks = (
        "[...document.querySelectorAll('.op')].find((n) => n.textContent.startsWith('o_proj')).click()",
        """document.querySelector('.bubble[aria-label^="layer.down_proj, decode"]')
             .dispatchEvent(new Event('click'))""",
        "[...document.querySelectorAll('tbody button')].find((n) => n.textContent.endsWith('qkv_proj')).click()",
    )
    for click, name in zip(clicks, ("o_proj", "down_proj", "qkv_proj"), strict=True):
        chromium.execute_script(click)
        settled(chromium)
        graph, table, op, bubbles = chromium.execute_script(chosen)
        assert graph == [name]
        assert table == [f"layer.{name}"]
        assert op[0].startswith(f"layer.{name} ")
        assert bubbles == 2  # of prefill and of decode
    browser.opened(chromium, page, chromium.execute_script("return location.hash"))
    assert chromium.execute_script(chosen)[0] == ["qkv_proj"]


@real
def test_keys_alone_choose_and_fold(page: Path, chromium: Any) -> None:
    from selenium.webdriver.common.action_chains import ActionChains
    from selenium.webdriver.common.keys import Keys

    def press(*keys: str) -> None:
        for key in keys:
            ActionChains(chromium).send_keys(key).perform()

    browser.opened(chromium, page)
    focused = "return document.activeElement.textContent"
    chromium.execute_script("document.querySelector('.fold[tabindex=\"0\"]').focus()")
    press(Keys.ARROW_DOWN)
    assert chromium.execute_script(focused).startswith("layer × 64")
    press(Keys.ENTER)
    assert chromium.execute_script("return document.activeElement.getAttribute('aria-expanded')") == "false"
    press(Keys.ENTER, Keys.ARROW_DOWN, Keys.ARROW_DOWN, Keys.ENTER)
    settled(chromium)
    assert chromium.execute_script("return llmirPage.state.op") == "layer.qkv_proj"
    assert chromium.execute_script("return document.querySelectorAll('#graph [tabindex=\"0\"]').length") == 1


@real
def test_what_is_pinned_stays_beside_it_and_differences_add_up(page: Path, chromium: Any) -> None:
    from selenium.webdriver.support.ui import Select

    browser.opened(chromium, page, "#batch=32&prompt=4000&generate=500")
    chromium.find_element("id", "pin").click()
    Select(chromium.find_element("id", "menu-weights")).select_by_visible_text("fp8")
    settled(chromium)
    programs = [program_of("qwen3-32b", {"weights": weights}) for weights in ("bf16", "fp8")]
    then, now = (llmir.workload(p, "h100-sxm", **START) for p in programs)
    said = chromium.find_element("id", "ttft_s").text
    assert units.time(then.ttft_s) in said
    assert units.digits(now.ttft_s / then.ttft_s) in said
    assert "A has weights bf16" in chromium.find_element("id", "against").text
    assert then.decode is not None
    assert now.decode is not None
    rows = chromium.execute_script(
        "return [...document.querySelectorAll('#against tbody tr')]"
        ".map((row) => [...row.cells].map((cell) => cell.textContent.trim()))"
    )
    (total,) = (row for row in rows if row[0] == "last decode step")
    change = now.decode.time_s - then.decode.time_s
    assert total[1:4] == [units.time(float(t)) for t in (then.decode.time_s, now.decode.time_s, change)]
    hash = chromium.execute_script("return location.hash")
    browser.opened(chromium, page, hash)
    assert chromium.find_element("id", "ttft_s").text == said


@real
def test_the_table_is_sorted_found_in_and_copied(page: Path, chromium: Any) -> None:
    import csv
    import io

    browser.opened(chromium, page)
    shown = (
        "return [...document.querySelectorAll('#table tbody tr:not([hidden]) th')].map((n) => n.textContent)"
    )
    chromium.execute_script("document.querySelector('th.share button').click()")
    assert chromium.execute_script(shown)[:2] == ["layer.flash_attention", "layer.gate_up_proj"]
    assert chromium.find_element("css selector", "th.share").get_attribute("aria-sort") == "descending"
    chromium.find_element("id", "filter").send_keys("norm")
    assert {name.rpartition("_")[2] for name in chromium.execute_script(shown)} == {"norm"}
    chromium.execute_script(
        "document.getElementById('copy').click(); document.getElementById('save-csv').click()"
    )
    text = chromium.execute_script(
        "return decodeURIComponent(llmirPage.views[0].saved.url.split(',').slice(1).join(','))"
    )
    rows = list(csv.DictReader(io.StringIO(text)))
    job = llmir.workload(program_of("qwen3-32b", {"weights": "bf16"}), "h100-sxm", **START)
    assert job.decode is not None
    assert [row["op"] for row in rows if row["phase"] == "decode"] == [op.name for op in job.decode.ops]
    times = {row["op"]: float(row["time_s"]) for row in rows if row["phase"] == "prefill"}
    assert all(off(times[op.name], op.time_s) < OFF for op in job.prefill.work)


@real
def test_what_is_copied_gives_the_same(page: Path, chromium: Any, run: Run) -> None:
    browser.opened(chromium, page, "#setup=3&batch=8&prompt=1000&generate=10")
    command, python, link = (
        chromium.execute_async_script(
            "const [act, done] = arguments, own = llmirPage.views[0];"
            "own.text(own[act]()).then(() => done(own.copied))",
            act,
        )
        for act in ("command", "python", "link")
    )
    done = run(*command.split()[1:], "--format", "json")
    tpot = chromium.execute_script("return llmirPage.view.figures.tpot_s")
    import json

    assert off(tpot, json.loads(done.out)["tpot_s"]) < OFF
    assert off(tpot, eval(python, {"llmir": llmir}).tpot_s) < OFF
    browser.opened(chromium, page, f"#{link.partition('#')[2]}")
    assert chromium.execute_script("return llmirPage.view.figures.tpot_s") == tpot


HOSTILE = (
    "<img src=x onerror=globalThis.run=1>",
    "<script>globalThis.run=1</script>",
    "</script><script>globalThis.run=1</script>",
    "javascript:globalThis.run=1",
    '"><svg onload=globalThis.run=1>',
    "{{script}} \\u003c &lt; ${globalThis.run=1}",
)


@real
@pytest.mark.parametrize("name", HOSTILE)
def test_names_are_text_and_run_nothing(name: str, chromium: Any, tmp_path: Path) -> None:
    from dataclasses import replace

    from llmir import hw
    from llmir.backends.cost import model
    from llmir.backends.export.web import Setup, page

    program = llmir.run(llmir.load("llama3.2-1b"), llmir.DEFAULT_PIPELINE)
    program = program.replace(name=name, notes=(name,))
    device = replace(hw.load("h100-sxm"), name=name)
    setups = [Setup({"hw": name}, program, model(device, "ideal")), Setup({"hw": "b"}, why=name)]
    (tmp_path / "page.html").write_text(page(setups, START, name), encoding="utf-8")
    browser.console(chromium)
    browser.requests(chromium)
    browser.opened(chromium, tmp_path / "page.html", "#" + "op=" + name.replace("#", ""))
    assert chromium.execute_script("return globalThis.run") is None
    assert chromium.title == f"{name}: llmir".strip()
    text = chromium.execute_script("return document.body.textContent")
    assert text.count(name) >= 3  # model, device, note
    assert (
        chromium.execute_script(
            "return document.querySelectorAll('img, body svg svg, [onerror], [onload]').length"
        )
        == 0
    )
    assert browser.console(chromium) == []
    assert len(browser.requests(chromium)) == 1


def test_names_in_tables_are_no_formulas() -> None:
    source = (Path(llmir.__file__).parent / "backends" / "export" / "web" / "table.js").read_text("utf-8")
    assert "=+\\-@" in source


@real
def test_a_policy_of_hashes_keeps_other_scripts_out(page: Path, chromium: Any) -> None:
    browser.opened(chromium, page)
    policy = chromium.find_element("css selector", "meta[http-equiv]").get_attribute("content")
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "unsafe" not in policy
    assert "blob:" not in policy
    chromium.execute_script(
        "const s = document.createElement('script'); s.textContent = 'globalThis.run = 1'; document.head.append(s)"
    )
    assert chromium.execute_script("return globalThis.run") is None
    browser.console(chromium)


@real
def test_an_old_browser_is_told_which_can(page: Path, chromium: Any) -> None:
    gone = chromium.execute_cdp_cmd(
        "Page.addScriptToEvaluateOnNewDocument", {"source": "delete globalThis.DecompressionStream"}
    )
    try:
        chromium.get("about:blank")
        chromium.get(page.as_uri())
        assert "Firefox from 113" in chromium.find_element("id", "old").text
    finally:
        chromium.execute_cdp_cmd("Page.removeScriptToEvaluateOnNewDocument", gone)
    assert browser.console(chromium) == []


@real
@pytest.mark.parametrize("width", [1440, 800, 360])
def test_nothing_is_cut_or_scrolls_sideways(width: int, page: Path, chromium: Any) -> None:
    wide = """
      const own = document.documentElement.clientWidth;
      return [...document.querySelectorAll("body *")].filter((node) => {
        const { right, width } = node.getBoundingClientRect();
        return width && right > own + 1 && !node.closest("#table, #against-body, .unseen, svg");
      }).map((node) => `${node.tagName} ${node.id} ${node.className}`);
    """
    try:
        browser.resize(chromium, width)
        for hash in ("", "#pin=1,32,4000,500", "#setup=0&batch=256&prompt=131072"):
            browser.opened(chromium, page, hash)
            assert chromium.execute_script(wide) == []
            assert chromium.execute_script("return document.documentElement.scrollWidth") <= width
    finally:
        browser.resize(chromium, 1440)


AXE = Path(__file__).parent.parent / "scripts" / "web" / "node_modules" / "axe-core" / "axe.min.js"


@real
@pytest.mark.skipif(not AXE.exists(), reason="axe-core is not installed: make web")
@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [1440, 360])
def test_axe_finds_no_serious_fault(theme: str, width: int, page: Path, chromium: Any) -> None:
    try:
        browser.resize(chromium, width)
        browser.opened(chromium, page, f"#theme={theme}&setup=2&pin=3,32,4000,500")
        settled(chromium)
        chromium.execute_script(AXE.read_text("utf-8"))
        found = chromium.execute_async_script("axe.run(document).then(arguments[0])")
    finally:
        browser.resize(chromium, 1440)
        browser.console(chromium)
    faults = {
        f["id"]: [node["html"][:120] for node in f["nodes"][:4]]
        for f in found["violations"]
        if f["impact"] in ("serious", "critical")
    }
    assert faults == {}
    assert found["passes"]


def test_pages_are_small_and_alike_each_time() -> None:
    made = llmir.page("llama3.1-8b")
    assert len(made.encode()) < 250_000
    assert made == llmir.page("llama3.1-8b")
    axes = {"hw": "h100-sxm,h200", "tp": (1, 2, 4, 8), "weights": "bf16,fp8"}
    assert len(llmir.page("qwen3-32b", axes).encode()) < 300_000


@pytest.mark.parametrize(
    ("axes", "more", "why"),
    [
        ({"batch": 8}, {}, "batch: is a slider"),
        ({"tp": "1:65"}, {}, "65 set-ups; a page has 64 at most"),
        ({"tp": 3}, {}, "no set-up can be"),
        ({}, {"max_size": 1000}, "more than 1,000; ask for fewer set-ups than 1, or raise --max-size"),
        ({}, {"batch": 0}, "batch"),
    ],
)
def test_what_is_refused(axes: dict[str, Any], more: dict[str, Any], why: str) -> None:
    with pytest.raises(InputError, match=why):
        llmir.page("llama3.2-1b", axes, **more)


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    return runner(capsys, tmp_path, monkeypatch)


def test_the_command_writes_the_page(run: Run, tmp_path: Path) -> None:
    done = run("report", "llama3.2-1b", "--tp", "1,2", "-o", "l.html")
    assert (done.code, done.out) == (0, "")
    assert (tmp_path / "l.html").read_text("utf-8") == llmir.page("llama3.2-1b", {"tp": (1, 2)})
    assert run("report", "llama3.2-1b", "-o", "l.pdf").code == 2
    done = run("report", "llama3.2-1b", "--max-size", "1kB", "-o", "m.html")
    assert done.code == 2
    assert "raise --max-size" in done.err
    assert not (tmp_path / "m.html").exists()
