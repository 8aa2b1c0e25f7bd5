"""Options: command line before environment before default; one line for what is wrong."""

from pathlib import Path

import pytest

from api.settings import Settings, load_settings, option_name, unknown_variables
from engine.errors import ConfigError
from engine.rope_scaling import RopeScaling

DESIGNED = [
    "model",
    "host",
    "port",
    "data-dir",
    "database-url",
    "block-size",
    "num-blocks",
    "kv-cache-memory",
    "gpu-memory-utilization",
    "max-model-len",
    "rope-scaling",
    "max-num-seqs",
    "max-num-batched-tokens",
    "max-waiting",
    "num-speculative-tokens",
    "scheduling-policy",
    "dtype",
    "kv-cache-dtype",
    "quantization",
    "cpu-isa",
    "attention-backend",
    "enforce-eager",
    "no-prefix-caching",
    "seed",
    "api-key",
    "api-key-file",
    "log-level",
    "orphan-timeout",
    "shutdown-timeout",
]


@pytest.fixture(autouse=True)
def _bare_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in Settings.model_fields:
        monkeypatch.delenv(f"PAGETURN_{name.upper()}", raising=False)


def test_the_options_are_those_of_the_design() -> None:
    assert [option_name(name) for name in Settings.model_fields] == [f"--{d}" for d in DESIGNED]


def test_defaults() -> None:
    settings = load_settings([])
    assert (settings.model, settings.host, settings.port) == ("smollm2-135m", "127.0.0.1", 7860)
    assert (settings.block_size, settings.orphan_timeout) == (16, 60.0)
    assert settings.data_dir.name == "pageturn"


def test_command_line_beats_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PAGETURN_PORT", "1")
    monkeypatch.setenv("PAGETURN_BLOCK_SIZE", "32")
    monkeypatch.setenv("PAGETURN_NO_PREFIX_CACHING", "true")
    monkeypatch.setenv("PAGETURN_SEED", "")
    settings = load_settings(["--port", "2"])
    assert (settings.port, settings.block_size, settings.seed) == (2, 32, None)
    assert settings.engine_config(Path("m"), "m").enable_prefix_caching is False


@pytest.mark.parametrize(
    ("text", "number"), [("1024", 1024), ("1k", 1024), ("512MiB", 2**29), ("2 GB", 2**31)]
)
def test_memory_has_units(text: str, number: int) -> None:
    assert load_settings(["--kv-cache-memory", text]).kv_cache_memory == number


def test_everything_reaches_the_engine() -> None:
    arguments = [
        "--block-size",
        "8",
        "--num-blocks",
        "9",
        "--max-model-len",
        "64",
        "--max-num-seqs",
        "4",
        "--seed",
        "7",
    ]
    arguments += [
        "--max-num-batched-tokens",
        "32",
        "--dtype",
        "float32",
        "--kv-cache-dtype",
        "bfloat16",
    ]
    arguments += [
        "--quantization",
        "none",
        "--cpu-isa",
        "torch",
        "--attention-backend",
        "reference",
        "--enforce-eager",
        "--gpu-memory-utilization",
        "0.5",
        "--no-prefix-caching",
        "--scheduling-policy",
        "priority",
    ]
    config = load_settings(arguments).engine_config(Path("model.gguf"), "name")
    assert (config.model_path, config.model_name) == (Path("model.gguf"), "name")
    assert (config.block_size, config.num_blocks, config.max_model_len) == (8, 9, 64)
    assert (config.max_num_seqs, config.max_num_batched_tokens, config.seed) == (4, 32, 7)
    assert (config.dtype, config.kv_cache_dtype) == ("float32", "bfloat16")
    assert (config.quantization, config.cpu_isa) == ("none", "torch")
    assert config.attention_backend == "reference"
    assert (config.enforce_eager, config.gpu_memory_utilization) == (True, 0.5)
    assert config.enable_prefix_caching is False
    assert config.scheduling_policy == "priority"


@pytest.mark.parametrize(
    ("arguments", "option", "value", "allowed"),
    [
        ("--port 70000", "--port", "'70000'", "0 to 65535"),
        ("--port x", "--port", "'x'", "whole number"),
        ("--block-size 0", "--block-size", "0", "1 to 1024"),
        ("--block-size 1025", "--block-size", "1025", "1 to 1024"),
        ("--block-size 1.5", "--block-size", "'1.5'", "whole number from 1 to 1024"),
        ("--port 78_60", "--port", "'78_60'", "0 to 65535"),
        ("--num-blocks +9", "--num-blocks", "'+9'", "1 to 2147483647"),
        ("--seed 1.0", "--seed", "'1.0'", "0 to"),
        ("--kv-cache-memory 1_0", "--kv-cache-memory", "'1_0'", "GiB"),
        ("--kv-cache-memory ١MiB", "--kv-cache-memory", "'١MiB'", "GiB"),
        ("--num-blocks 0", "--num-blocks", "0", "1 to 2147483647"),
        ("--num-blocks many", "--num-blocks", "'many'", "1 to 2147483647"),
        (
            "--num-blocks 9 --kv-cache-memory 1MiB",
            "--kv-cache-memory",
            "1MiB",
            "--num-blocks (9)",
        ),
        ("--num-blocks 1 --block-size 1", "--num-blocks", "1", "at least 2"),
        ("--max-model-len 1", "--max-model-len", "1", "2 to"),
        ("--max-num-seqs 0", "--max-num-seqs", "0", "1 to 65536"),
        ("--kv-cache-memory 0", "--kv-cache-memory", "0", "1 to"),
        ("--kv-cache-memory 2048TiB", "--kv-cache-memory", "2048TiB", "1 to 1024TiB"),
        ("--kv-cache-memory -1", "--kv-cache-memory", "-1", "1 to"),
        ("--dtype int8", "--dtype", "'int8'", "auto, float32, bfloat16, float16"),
        (
            "--attention-backend cuda",
            "--attention-backend",
            "'cuda'",
            "auto, triton, cpu, reference",
        ),
        ("--scheduling-policy lifo", "--scheduling-policy", "'lifo'", "fcfs, priority"),
        ("--kv-cache-memory lots", "--kv-cache-memory", "'lots'", "GiB"),
        ("--gpu-memory-utilization 0", "--gpu-memory-utilization", "0.0", "above 0, 1 at most"),
        ("--gpu-memory-utilization 1.1", "--gpu-memory-utilization", "1.1", "1 at most"),
        ("--orphan-timeout nan", "--orphan-timeout", "'nan'", "0 to 86400"),
        ("--shutdown-timeout 11", "--shutdown-timeout", "'11'", "0 to 10"),
        ("--log-level loud", "--log-level", "'loud'", "debug, info, warning, error"),
        ("--rope-scaling yarn", "--rope-scaling", "'yarn'", "a JSON object"),
        ("--seed -1", "--seed", "-1", "0 to"),
        ("--max-num-batched-tokens 8", "--max-num-batched-tokens", "8", "--max-num-seqs (64)"),
    ],
)
def test_a_bad_value_names_option_value_and_what_is_allowed(
    arguments: str, option: str, value: str, allowed: str
) -> None:
    with pytest.raises(ConfigError) as raised:
        load_settings(arguments.split())
    message = str(raised.value)
    assert message.startswith(f"{option}: {value} is not allowed")
    assert allowed in message
    assert "\n" not in message


def test_rope_scaling_is_json(monkeypatch: pytest.MonkeyPatch) -> None:
    text = '{"rope_type": "yarn", "factor": 4}'
    expected = RopeScaling(rope_type="yarn", factor=4)
    given = load_settings(["--rope-scaling", text])
    assert given.engine_config(Path("m"), "m").rope_scaling == expected
    monkeypatch.setenv("PAGETURN_ROPE_SCALING", text)
    assert load_settings([]).rope_scaling == expected
    monkeypatch.setenv("PAGETURN_ROPE_SCALING", "")
    assert load_settings([]).rope_scaling is None
    monkeypatch.setenv("PAGETURN_ROPE_SCALING", '{"rope_type": "yarn", "factor": 0.5}')
    with pytest.raises(ConfigError, match=r"^--rope-scaling factor: 0\.5 is not allowed; a number"):
        load_settings([])


def test_a_bad_variable_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PAGETURN_PORT", "x")
    with pytest.raises(ConfigError, match=r"^--port \(from PAGETURN_PORT\): 'x' is not allowed"):
        load_settings([])


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"BLOCK_SIZE": "0"}, "--block-size (from PAGETURN_BLOCK_SIZE): 0 is not allowed; a whole"),
        ({"NUM_BLOCKS": "0"}, "--num-blocks (from PAGETURN_NUM_BLOCKS): 0 is not allowed; a whole"),
        (
            {"SCHEDULING_POLICY": "lifo"},
            "--scheduling-policy (from PAGETURN_SCHEDULING_POLICY): 'lifo' is not allowed; one of",
        ),
        (
            {"MAX_NUM_SEQS": "600"},
            "--max-num-batched-tokens: 512 is not allowed; at least --max-num-seqs (600), so",
        ),
    ],
)
def test_a_variable_that_cannot_work_is_named(
    variables: dict[str, str], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(f"PAGETURN_{name}", value)
    with pytest.raises(ConfigError) as raised:
        load_settings([])
    assert str(raised.value).startswith(message)


def test_a_bad_key_is_not_shown() -> None:
    with pytest.raises(ConfigError) as raised:
        load_settings(["--api-key", "two words"])
    assert "two words" not in str(raised.value)
    assert "s3cret" not in repr(load_settings(["--api-key", "s3cret"]))


def test_an_empty_key_is_no_open_server(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"^--api-key: '' is not allowed; visible ASCII"):
        load_settings(["--api-key", ""])
    for name in ("PAGETURN_API_KEY", "pageturn_api_key"):
        with monkeypatch.context() as environment:
            environment.setenv(name, "")
            pattern = r"^--api-key \(from PAGETURN_API_KEY\): '' is not allowed; .*unset"
            with pytest.raises(ConfigError, match=pattern):
                load_settings([])
            assert load_settings(["--api-key", "k"]).api_key is not None


def test_unknown_variables_are_found() -> None:
    environment = {"PAGETURN_PROT": "1", "PAGETURN_PORT": "2", "OTHER": "3", "PAGETURN_A": ""}
    assert unknown_variables(environment) == ["PAGETURN_A", "PAGETURN_PROT"]


def test_an_unknown_option_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        load_settings(["--prot", "1"])
    assert ended.value.code == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_help_lists_every_option(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        load_settings(["--help"])
    assert ended.value.code == 0
    text = capsys.readouterr().out
    assert all(f"--{name}" in text for name in DESIGNED)
    assert "PAGETURN_" in text
