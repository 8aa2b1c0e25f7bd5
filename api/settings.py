"""Options of the server: command line `--name value`, environment `PAGETURN_NAME`, defaults; in that order.

`Settings` is the one place that knows an option: the parser, `--help`, the environment and the table in docs/http.md
follow from its fields. Ranges that the engine sets are checked by `engine.config.EngineConfig`.
"""

import argparse
import os
import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal, NoReturn, get_args

import platformdirs
from pydantic import BeforeValidator, Field, SecretStr, ValidationError
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from api.key_sources import ALLOWED, read_key_file, split_keys
from api.numbers import WholeNumber, plain_number
from engine.config import (
    AttentionBackend,
    CpuIsa,
    DType,
    EngineConfig,
    KVCacheDType,
    Quantization,
    SchedulingPolicy,
    allowed_range,
)
from engine.errors import ConfigError
from engine.rope_scaling import RopeScaling, parse_rope_scaling

ENV_PREFIX = "PAGETURN_"
_KEY_VARIABLE = ENV_PREFIX + "API_KEY"
LogLevel = Literal["debug", "info", "warning", "error"]

_MULTIPLES = {"": 1, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}
_WHOLE = "a whole number"


def _parse_bytes(value: object) -> object:
    match = re.fullmatch(r"([0-9]+)\s*([kmgt]?)(?:i?b)?", str(value).strip().lower())
    return int(match[1]) * _MULTIPLES[match[2]] if match else plain_number(value)


def _default_data_dir() -> Path:
    return platformdirs.user_data_path("pageturn", appauthor=False)


def _option(default: Any, description: str, allowed: str, **limits: Any) -> Any:
    return Field(default, description=description, json_schema_extra={"allowed": allowed}, **limits)


def _choice(choices: Any, default: str, description: str) -> Any:
    return _option(default, description, "one of " + ", ".join(get_args(choices)))


class Settings(BaseSettings):
    """Every option of the command line; field names are the option names with underscores.

    An empty environment variable counts as not set, but for the key's: whoever sets that one wants a closed server.
    """

    model_config = SettingsConfigDict(
        env_prefix=ENV_PREFIX, env_ignore_empty=True, extra="forbid", frozen=True
    )

    model: str = _option(
        "smollm2-135m",
        "what to run: a built-in name, a folder with safetensors, a .gguf file, or a hub id",
        "a built-in name, a path or a hub id",
        min_length=1,
    )
    host: str = _option("127.0.0.1", "address to listen on", "a host name or address", min_length=1)
    port: WholeNumber = _option(
        7860, "port to listen on; 0 picks a free one", f"{_WHOLE} from 0 to 65535", ge=0, le=65535
    )
    data_dir: Path = Field(
        default_factory=_default_data_dir,
        description="folder of the database and the model cache (default: the user's data folder)",
        json_schema_extra={"allowed": "a folder"},
    )
    database_url: str | None = _option(
        None, "SQLAlchemy async URL (default: pageturn.db in --data-dir)", "a SQLAlchemy async URL"
    )
    block_size: WholeNumber = _option(
        16,
        "tokens per KV block; the fused CPU runner takes multiples of 16",
        allowed_range("block_size"),
    )
    num_blocks: WholeNumber | None = _option(
        None,
        "KV blocks in the pool (default: from --kv-cache-memory, else from free memory)",
        allowed_range("num_blocks"),
    )
    kv_cache_memory: Annotated[int | None, BeforeValidator(_parse_bytes)] = _option(
        None,
        "memory for KV blocks, for example 512MiB or 2GiB; not with --num-blocks",
        "bytes, or a number with KiB, MiB or GiB",
    )
    gpu_memory_utilization: float = _option(
        0.9, "share of a GPU's memory that may be used", "a number above 0, 1 at most"
    )
    max_model_len: WholeNumber | None = _option(
        None,
        "longest prompt with its answer, in tokens (default: the model's)",
        allowed_range("max_model_len"),
    )
    rope_scaling: Annotated[RopeScaling | None, NoDecode, BeforeValidator(parse_rope_scaling)] = (
        _option(
            None,
            'stretches the context, as JSON: {"rope_type": "yarn", "factor": 4} (default: as the model\'s file says)',
            "a JSON object",
        )
    )
    max_num_seqs: WholeNumber = _option(
        64, "sequences that run at once", allowed_range("max_num_seqs")
    )
    max_num_batched_tokens: WholeNumber = _option(
        512, "token budget of one engine step", allowed_range("max_num_batched_tokens")
    )
    max_waiting: WholeNumber = _option(
        1024,
        "requests that may wait for their first step, more get 429; 0 is no limit",
        allowed_range("max_waiting"),
    )
    num_speculative_tokens: WholeNumber | None = _option(
        None,
        "tokens guessed ahead by prompt lookup, 11 at most; 0 is none (default: as many as pay, on CPUs with the compiled step)",
        allowed_range("num_speculative_tokens"),
    )
    scheduling_policy: SchedulingPolicy = _choice(
        SchedulingPolicy, "fcfs", "who goes first: by arrival, or by the requests' priority"
    )
    dtype: DType = _choice(DType, "auto", "arithmetic of the model; float32 is the exact one")
    kv_cache_dtype: KVCacheDType = _choice(
        KVCacheDType,
        "auto",
        "number format of the KV cache; int8 (fused CPU runner, GPU) and fp8 (GPU) take half",
    )
    quantization: Quantization = _choice(
        Quantization,
        "auto",
        "of the weights: none is none, int8 and int4 are bits of all matrices (int4: 8 for embedding and head; a CPU's), fp8 is a GPU's; auto is what the file has, where a fast kernel takes it, else the fastest",
    )
    cpu_isa: CpuIsa = _choice(
        CpuIsa,
        "auto",
        "what computes on a CPU: the fused step with avx512 or avx2; torch runs everywhere",
    )
    attention_backend: AttentionBackend = _choice(AttentionBackend, "auto", "attention kernels")
    enforce_eager: bool = _option(
        False, "do not record decode steps as CUDA graphs", "true or false"
    )
    no_prefix_caching: bool = _option(
        False, "do not reuse the KV of equal prefixes", "true or false"
    )
    seed: WholeNumber | None = _option(
        None, "seed of draws that have none (default: fresh entropy)", allowed_range("seed")
    )
    api_key: SecretStr | None = _option(
        None, "key that every client must show, or several with commas between", ALLOWED
    )
    api_key_file: Path | None = _option(
        None, "file of more such keys, one a line", "a text file with one key a line"
    )
    log_level: LogLevel = _choice(LogLevel, "info", "least severe messages shown")
    orphan_timeout: float = _option(
        60.0,
        "seconds that a generation runs on with nobody attached",
        "a number from 0 to 86400",
        ge=0,
        le=86_400,
        allow_inf_nan=False,
    )
    shutdown_timeout: float = _option(
        5.0,
        "seconds that streams get to end at shutdown",
        "a number from 0 to 10",
        ge=0,
        le=10,
        allow_inf_nan=False,
    )

    def model_post_init(self, context: Any) -> None:
        """Check what only the values together show. Raises ConfigError."""
        self.engine_config(Path(), "")
        _ = self.api_keys
        if self.api_key is None and any(
            k.upper() == _KEY_VARIABLE and not v for k, v in os.environ.items()
        ):
            raise ConfigError(_name_source("api_key", {}), "", f"{_allowed('api_key')}, or unset")

    @cached_property
    def api_keys(self) -> tuple[str, ...]:
        """All keys that open the server; none when it is open to all. Raises ConfigError."""
        given = () if self.api_key is None else split_keys(self.api_key.get_secret_value())
        return given + (() if self.api_key_file is None else read_key_file(self.api_key_file))

    def engine_config(self, model_path: Path, model_name: str) -> EngineConfig:
        """The engine's share of the options, for a model that has been found. Raises ConfigError."""
        shared = EngineConfig.__dataclass_fields__.keys() & type(self).model_fields.keys()
        return EngineConfig(
            model_path=model_path,
            model_name=model_name,
            enable_prefix_caching=not self.no_prefix_caching,
            **{name: getattr(self, name) for name in shared},
        )


def option_name(field: str) -> str:
    """`--block-size` for `block_size`."""
    return "--" + field.replace("_", "-")


def load_settings(arguments: Sequence[str]) -> Settings:
    """Settings from the command line and the environment. Raises ConfigError for the first bad value.

    `--help` and unknown options end the process as argparse does (exit codes 0 and 2).
    """
    given = {k: v for k, v in vars(_parser().parse_args(arguments)).items() if v is not None}
    try:
        return Settings(**given)
    except ValidationError as error:
        first = error.errors()[0]
        field = str(first["loc"][0])
        value = "(hidden)" if field == "api_key" else first["input"]
        raise ConfigError(_name_source(field, given), value, _allowed(field)) from None
    except ConfigError as error:
        field = error.option.removeprefix("--").replace("-", "_")
        if field not in Settings.model_fields:
            raise
        raise ConfigError(_name_source(field, given), error.value, error.allowed) from None


def unknown_variables(environment: Mapping[str, str] = os.environ) -> list[str]:
    """PAGETURN_* variables that are no option, in order."""
    known = {ENV_PREFIX + name.upper() for name in Settings.model_fields}
    return sorted(k for k in environment if k.startswith(ENV_PREFIX) and k not in known)


def _name_source(field: str, given: Mapping[str, object]) -> str:
    variable = ENV_PREFIX + field.upper()
    is_variable = field not in given and any(name.upper() == variable for name in os.environ)
    return f"{option_name(field)} (from {variable})" if is_variable else option_name(field)


def _allowed(field: str) -> str:
    extra = Settings.model_fields[field].json_schema_extra
    assert isinstance(extra, dict), f"option {field} does not say what it allows"
    return str(extra["allowed"])


class _OneLineParser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{message}; --help lists the options\n")


def _parser() -> argparse.ArgumentParser:
    parser = _OneLineParser(
        prog="python app.py",
        description="Pageturn: a streaming chat web application with its own inference engine.",
        epilog=f"Each option is also an environment variable: --block-size is {ENV_PREFIX}BLOCK_SIZE.",
        allow_abbrev=False,
    )
    for name, field in Settings.model_fields.items():
        default = None if field.default_factory else field.default
        _add_option(parser, name, field.description or "", field.annotation, default)
    return parser


def _add_option(
    parser: argparse.ArgumentParser, name: str, description: str, annotation: Any, default: Any
) -> None:
    if annotation is bool:
        parser.add_argument(option_name(name), action="store_true", default=None, help=description)
        return
    text = description if default is None else f"{description} (default: {default})"
    choices = [a for a in get_args(annotation) if isinstance(a, str)]
    metavar = "|".join(choices) if choices else name.rsplit("_", 1)[-1].upper()
    parser.add_argument(option_name(name), metavar=metavar, help=text.replace("%", "%%"))
