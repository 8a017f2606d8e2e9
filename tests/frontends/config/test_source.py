"""A model is found by its name, its path or its dict, and whatever is wrong with it is one line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmir.base.errors import ConfigError
from llmir.frontends.config.reader import read

from .messages import message

LLAMA = {"model_type": "llama", "hidden_size": 4096, "torch_dtype": "bfloat16"}


def test_a_config_is_the_same_from_a_file_a_folder_a_dict_and_an_object(tmp_path: Path) -> None:
    class HasToDict:
        def to_dict(self) -> dict[str, object]:
            return LLAMA

    file = tmp_path / "config.json"
    file.write_text(json.dumps(LLAMA), encoding="utf-8-sig")
    sources = [str(file), file, str(tmp_path), tmp_path, LLAMA, HasToDict(), read(LLAMA)]
    assert all(dict(read(source).fields) == LLAMA for source in sources)


def test_the_fields_are_a_copy_that_cannot_be_written() -> None:
    fields = dict(LLAMA)
    view = read(fields)
    fields["hidden_size"] = 1
    assert view.integer("hidden_size") == 4096
    with pytest.raises(TypeError):
        view.fields["hidden_size"] = 1  # type: ignore[index]


def test_reading_a_config_again_forgets_what_was_noted() -> None:
    first = read({"foo": 1}, lenient=True)
    first.finish()
    again = read(first)
    assert (first.notes != [], again.notes, again.lenient) == (True, [], True)


@pytest.mark.parametrize(
    ("path", "own", "name"),
    [
        ("tiny-llama/config.json", None, "tiny-llama"),
        ("tiny-llama/variant.json", None, "variant"),
        ("tiny-llama/config.json", "meta-llama/Llama-2-7b-hf", "Llama-2-7b-hf"),
        ("tiny-llama/config.json", "C:\\models\\mine\\", "mine"),
        ("tiny-llama/config.json", 7, "tiny-llama"),
        ("<b>tiny/config.json", None, "<b>tiny"),
        ("tiny\n\x1b[31m/config.json", None, "tiny[31m"),
    ],
)
def test_a_file_names_its_model(tmp_path: Path, path: str, own: object, name: str) -> None:
    file = tmp_path / path
    file.parent.mkdir()
    file.write_text(json.dumps(LLAMA if own is None else {**LLAMA, "_name_or_path": own}), "utf-8")
    assert read(file).name == name


def test_a_dict_is_named_by_its_model_type_and_a_preset_by_itself() -> None:
    assert read(LLAMA).name == "llama"
    assert read({}).name == "model"
    assert read("meta-llama/llama_3.1-8b").name == "Llama-3.1-8B"


def test_a_name_wins_over_a_folder_unless_it_looks_like_a_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for folder in ("llama-3-8b", "mine", "org/llama-3-8b"):
        Path(folder).mkdir(parents=True)
        Path(folder, "config.json").write_text(json.dumps({"hidden_size": 7}), "utf-8")
    assert read("llama-3-8b").integer("hidden_size") == 4096
    for path in ("./llama-3-8b", "mine", "org/llama-3-8b"):
        assert read(path).integer("hidden_size") == 7


BAD_FILES = {
    "empty": (b"", "the file is empty"),
    "blank": (b" \n", "the file is empty"),
    "broken": (b'{"a": 1,\n "b" 2}', "broken JSON at line 2, column 6"),
    "a list": (b"[1]", "expected a JSON object, got a list"),
    "null": (b"null", "expected a JSON object, got null"),
    "not UTF-8": (b'{"a": "\xff"}', "not UTF-8 text (byte 7)"),
    "deep": (b"[" * 100_000, "nested more than 32 deep"),
    "digits": (b'{"a": ' + b"1" * 10_000 + b"}", "a number of more than 400 digits"),
}


@pytest.mark.parametrize(("data", "fact"), BAD_FILES.values(), ids=BAD_FILES)
def test_a_bad_file_is_an_error_that_names_it(tmp_path: Path, data: bytes, fact: str) -> None:
    file = tmp_path / "config.json"
    file.write_bytes(data)
    with pytest.raises(ConfigError) as error:
        read(file)
    assert message(error).startswith(f"{file}: ") and fact in message(error)


def test_missing_paths_and_folders_without_a_config_are_errors(tmp_path: Path) -> None:
    for path in (tmp_path / "none.json", tmp_path / "none", "./none\n.json", "a/b/c", "x\0.json"):
        with pytest.raises(ConfigError) as error:
            read(path)
        assert message(error).endswith(": no such file or folder")
    with pytest.raises(ConfigError) as error:
        read(tmp_path)
    assert message(error) == f"{tmp_path}: no config.json in this folder"


def test_a_file_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "config.json").mkdir()  # opens for nobody, not even for root
    with pytest.raises(ConfigError) as error:
        read(tmp_path)
    assert "cannot be read" in message(error)


def test_a_file_too_large_for_a_config_is_an_error(tmp_path: Path) -> None:
    file = tmp_path / "weights.json"
    with file.open("wb") as stream:
        os.truncate(stream.fileno(), 2**24 + 1)
    with pytest.raises(ConfigError, match="too large"):
        read(file)


def test_an_unknown_name_suggests_near_ones() -> None:
    with pytest.raises(ConfigError) as error:
        read("Qwen/Qwen3-23B")
    text = message(error)
    assert "Qwen3-32B" in text and "llmir models" in text and "path" in text


@given(st.text())
def test_any_string_is_a_model_or_a_one_line_error(name: str) -> None:
    try:
        read(name)
    except ConfigError as error:
        assert str(error).isprintable()


@pytest.mark.parametrize("model", [7, None, b"llama", ["llama"], dict, object()])
def test_what_is_not_a_model_is_an_error(model: object) -> None:
    with pytest.raises(ConfigError) as error:
        read(model)
    assert message(error).startswith("a model is a name, a path, a dict or has .to_dict(); got ")


@pytest.mark.slow
def test_reading_a_config_imports_nothing_heavy() -> None:
    script = "import sys, llmir.frontends.config.source; print(*sys.modules)"
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert not {"torch", "transformers", "yaml"} & set(run.stdout.split())


def test_a_field_that_is_there_twice_has_one_value(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text('{"vocab_size": 8, "rope_scaling": {"factor": 2.0, "factor": 2}, "vocab_size": 8}')
    assert read(file).fields == {"vocab_size": 8, "rope_scaling": {"factor": 2.0}}
    file.write_text('{"vocab_size": 8, "rope_scaling": {"factor": 2.0, "factor": 4.0}}', "utf-8")
    with pytest.raises(ConfigError) as error:
        read(file)
    assert message(error) == f'{file}: "factor" occurs twice, as 2.0 and 4.0'
