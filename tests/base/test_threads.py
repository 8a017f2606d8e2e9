"""Many threads of a cold process load models at the same time."""

import json
import subprocess
import sys

import pytest

from llmir.frontends.models.presets import PRESETS

COLD = """
import json, sys, threading
sys.setswitchinterval(1e-5)
import llmir
names, answers, errors = sys.argv[1:], {}, []
start = threading.Barrier(len(names))

def estimate(name):
    step = llmir.analyze(llmir.load(name), "h100-sxm", batch=2, new=1, context=300)
    return step.time_s, step.flops

def work(place, name):
    start.wait()
    try:
        answers[place] = estimate(name)
    except BaseException as error:
        errors.append(f"{name}: {type(error).__name__}: {error}")

threads = [threading.Thread(target=work, args=pair) for pair in enumerate(names)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
errors += [f"{names[i]}: {x} and {estimate(names[i])}" for i, x in answers.items() if x != estimate(names[i])]
print(json.dumps(errors))
"""
MODELS = sorted(name for name, preset in PRESETS.items() if "patch_size" not in preset.config)
PROCESSES = 12


@pytest.mark.mostly_slow(12)
@pytest.mark.parametrize("process", range(PROCESSES))
def test_threads_of_a_cold_process_find_complete_definitions(process: int) -> None:
    names = (MODELS[process::PROCESSES] * 8)[:8]
    done = subprocess.run([sys.executable, "-c", COLD, *names], capture_output=True, check=True, text=True)
    assert json.loads(done.stdout) == []
