"""Phi-3 and Phi-4 (text).

Shapes: section 2 of the technical reports (arXiv:2404.14219, 2412.08905) and the released configs. Totals:
the checkpoints on huggingface.co/microsoft.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from .preset import Preset

_COLUMNS = (
    *("num_hidden_layers", "hidden_size", "num_attention_heads", "num_key_value_heads", "intermediate_size"),
    *("vocab_size", "max_position_embeddings", "rope_theta", "sliding_window"),
)
# One factor for each pair of elements of a head.
_SHORT = (
    1.0,
    1.0199999809265137,
    1.0299999713897705,
    1.0299999713897705,
    1.0499999523162842,
    1.0499999523162842,
    1.0499999523162842,
    1.0499999523162842,
    1.0499999523162842,
    1.0699999332427979,
    1.0999999046325684,
    1.1099998950958252,
    1.1599998474121094,
    1.1599998474121094,
    1.1699998378753662,
    1.2899998426437378,
    1.339999794960022,
    1.679999828338623,
    1.7899998426437378,
    1.8199998140335083,
    1.8499997854232788,
    1.8799997568130493,
    1.9099997282028198,
    1.9399996995925903,
    1.9899996519088745,
    2.0199997425079346,
    2.0199997425079346,
    2.0199997425079346,
    2.0199997425079346,
    2.0199997425079346,
    2.0199997425079346,
    2.0299997329711914,
    2.0299997329711914,
    2.0299997329711914,
    2.0299997329711914,
    2.0299997329711914,
    2.0299997329711914,
    2.0299997329711914,
    2.0299997329711914,
    2.0299997329711914,
    2.0799996852874756,
    2.0899996757507324,
    2.189999580383301,
    2.2199995517730713,
    2.5899994373321533,
    2.729999542236328,
    2.749999523162842,
    2.8399994373321533,
)
_LONG = (
    1.0800000429153442,
    1.1100000143051147,
    1.1399999856948853,
    1.340000033378601,
    1.5899999141693115,
    1.600000023841858,
    1.6200000047683716,
    2.620000123977661,
    3.2300000190734863,
    3.2300000190734863,
    4.789999961853027,
    7.400000095367432,
    7.700000286102295,
    9.09000015258789,
    12.199999809265137,
    17.670000076293945,
    24.46000099182129,
    28.57000160217285,
    30.420001983642578,
    30.840002059936523,
    32.590003967285156,
    32.93000411987305,
    42.320003509521484,
    44.96000289916992,
    50.340003967285156,
    50.45000457763672,
    57.55000305175781,
    57.93000411987305,
    58.21000289916992,
    60.1400032043457,
    62.61000442504883,
    62.62000274658203,
    62.71000289916992,
    63.1400032043457,
    63.1400032043457,
    63.77000427246094,
    63.93000411987305,
    63.96000289916992,
    63.970001220703125,
    64.02999877929688,
    64.06999969482422,
    64.08000183105469,
    64.12000274658203,
    64.41000366210938,
    64.4800033569336,
    64.51000213623047,
    64.52999877929688,
    64.83999633789062,
)
# Factors for the pairs that Phi-4-mini rotates, which are three quarters of a head.
_MINI = (
    *(1.0, 1.118320672, 1.250641126, 1.398617824, 1.564103225, 1.74916897),
    *(1.956131817, 2.187582649, 2.446418898, 2.735880826, 3.059592084, 3.421605075),
    *(3.826451687, 4.279200023, 4.785517845, 5.351743533, 5.984965424, 6.693110555),
    *(7.485043894, 8.370679318, 9.36110372, 10.4687158, 11.70738129, 13.09260651),
    *(14.64173252, 16.37415215, 18.31155283, 20.47818807, 22.90118105, 25.61086418),
    *(28.64115884, 32.03, 32.1, 32.13, 32.23, 32.6),
    *(32.61, 32.64, 32.66, 32.7, 32.71, 32.93),
    *(32.97, 33.28, 33.49, 33.5, 44.16, 47.77),
)
_ROWS = {  # parameters, then the columns
    "Phi-3-mini-3.8B-4k": (3_821_079_552, 32, 3072, 32, 32, 8192, 32064, 4096, 1e4, 2047),
    "Phi-3-medium-14B-4k": (13_960_238_080, 40, 5120, 40, 10, 17920, 32064, 4096, 1e4, 2047),
    "Phi-3.5-mini-3.8B": (3_821_079_552, 32, 3072, 32, 32, 8192, 32064, 131072, 1e4, 262144),
    "Phi-4-14B": (14_659_507_200, 40, 5120, 40, 10, 17920, 100352, 16384, 250000.0, None),
    "Phi-4-mini-3.8B": (3_836_021_760, 32, 3072, 24, 8, 8192, 200064, 131072, 1e4, 262144),
}
_REPOSITORIES = {
    "Phi-3-mini-3.8B-4k": "Phi-3-mini-4k-instruct",
    "Phi-3-medium-14B-4k": "Phi-3-medium-4k-instruct",
    "Phi-3.5-mini-3.8B": "Phi-3.5-mini-instruct",
    "Phi-4-14B": "phi-4",
    "Phi-4-mini-3.8B": "Phi-4-mini-instruct",
}


def _stretched(short: Iterable[float], long: Iterable[float]) -> dict[str, object]:
    scaling = {"type": "longrope", "short_factor": list(short), "long_factor": list(long)}
    return {"original_max_position_embeddings": 4096, "rope_scaling": scaling}


_OWN: Mapping[str, Mapping[str, object]] = {
    "Phi-3.5-mini-3.8B": _stretched(_SHORT, _LONG),
    "Phi-4-mini-3.8B": {
        **_stretched([1.0] * len(_MINI), _MINI),
        "partial_rotary_factor": 0.75,
        "tie_word_embeddings": True,
    },
}
_EVERY: Mapping[str, object] = {
    "architectures": ["Phi3ForCausalLM"],
    "model_type": "phi3",
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
    "rope_scaling": None,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}


def presets() -> Iterator[Preset]:
    """Every bundled Phi, by age and size."""
    for name, (parameters, *values) in _ROWS.items():
        config = {**_EVERY, **dict(zip(_COLUMNS, values, strict=True)), **_OWN.get(name, {})}
        repository = _REPOSITORIES[name]
        aliases = (repository.removesuffix("-instruct"),) if repository.endswith("instruct") else ()
        yield Preset(name, f"microsoft/{repository}", config, parameters, aliases)
