"""What is known of measured rows beside their columns."""

from __future__ import annotations

from pathlib import Path

import pytest

from llmir.backends.silicon.machines import Machines
from llmir.backends.silicon.tables import load
from llmir.backends.silicon.validate.requests import request

COLUMNS = "model,gpu,num_gpus,kind,isl,osl,batch_or_concurrency,ttft_ms,framework,note,source"


@pytest.mark.parametrize(
    ("note", "source", "gpu", "prompt"),
    [
        ("01ccad58:running-llamas", "optimum_benchmark", "A100-80-SXM-Station", 512),
        ("74cdf473:running-llamas", "optimum_benchmark", "A100-80-SXM-Station", 256),
        ("", "someone", "A100-80-SXM", 512),
    ],
)
def test_a_source_may_say_what_ran_a_row_and_how_long_it_was(
    tmp_path: Path, note: str, source: str, gpu: str, prompt: int
) -> None:
    table = tmp_path / "e2e.csv"
    table.write_text(
        f"{COLUMNS}\nllama-2-7b,a100_sxm,1,static_batch_latency,512,,4,113,transformers,{note},{source}\n"
    )
    _, rows = load(table)
    assert Machines(tmp_path)(rows["gpu"][0]).name == gpu
    assert request(rows, 0).prompt == prompt


def test_a_station_is_an_a100_whose_matrix_units_are_slower() -> None:
    machines = Machines(Path())
    station, card = machines("a100-station"), machines("a100_sxm")
    assert station.calibration == card.calibration
    assert station.memory_Bps == card.memory_Bps
    assert {d: f for d, f in station.matrix_flops.items() if f >= card.matrix_flops[d]}.keys() <= {"fp64"}
