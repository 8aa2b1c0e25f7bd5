"""The container format: what stands in it is found, and a broken file is one clear error."""

from pathlib import Path

import numpy as np
import pytest
from gguf import GGUFWriter
from gguf.constants import GGMLQuantizationType
from gguf.quants import quantize

from engine.errors import ModelLoadError
from engine.loader.gguf_file import GGUFFile


def write(path: Path) -> Path:
    writer = GGUFWriter(path, "llama")
    writer.add_context_length(4096)
    writer.add_rope_freq_base(0.5)
    writer.add_name("größer 😀")
    writer.add_token_list(["a", "ü", ""])
    writer.add_token_types([1, 3, -1])
    writer.add_add_bos_token(False)
    writer.add_tensor("plain", np.arange(6, dtype=np.float32).reshape(2, 3))
    values = np.linspace(-1, 1, 128, dtype=np.float32).reshape(2, 64)
    q8 = GGMLQuantizationType.Q8_0
    writer.add_tensor("packed", quantize(values, q8), raw_dtype=q8)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_metadata_and_tensors_are_found(tmp_path: Path) -> None:
    file = GGUFFile(write(tmp_path / "a.gguf"))
    assert file.architecture == "llama"
    assert file.metadata["llama.context_length"] == 4096
    assert file.metadata["llama.rope.freq_base"] == 0.5
    assert file.metadata["general.name"] == "größer 😀"
    assert file.metadata["tokenizer.ggml.tokens"] == ["a", "ü", ""]
    assert file.metadata["tokenizer.ggml.token_type"] == [1, 3, -1]
    assert file.metadata["tokenizer.ggml.add_bos_token"] is False
    plain, packed = file.tensors["plain"], file.tensors["packed"]
    assert plain.shape == (2, 3)
    assert plain.rows().view(np.float32).tolist() == [[0, 1, 2], [3, 4, 5]]
    assert (packed.shape, packed.quantization) == ((2, 64), GGMLQuantizationType.Q8_0)
    assert packed.rows().shape == (2, 2 * 34)


def test_a_file_cut_anywhere_is_refused(tmp_path: Path) -> None:
    whole = write(tmp_path / "a.gguf").read_bytes()
    cut = tmp_path / "cut.gguf"
    for length in [0, 3, 10, 30, 100, len(whole) // 2, len(whole) - 200]:
        cut.write_bytes(whole[:length])
        with pytest.raises(ModelLoadError, match=r"cut\.gguf"):
            GGUFFile(cut)


def test_other_formats_and_versions_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "a.gguf")
    data = path.read_bytes()
    path.write_bytes(data[:4] + b"\x01\0\0\0" + data[8:])
    with pytest.raises(
        ModelLoadError, match=r"version 1; a GGUF file of version \(2, 3\) is needed"
    ):
        GGUFFile(path)
    path.write_bytes(b"PK\x03\x04" + data[4:])
    with pytest.raises(ModelLoadError, match="a GGUF file"):
        GGUFFile(path)
    path.write_bytes(data.replace(b"plain\x02\0\0\0", b"plain\xff\xff\xff\xff"))
    with pytest.raises(ModelLoadError, match="is not a readable GGUF file"):
        GGUFFile(path)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match=r"none\.gguf is not a readable GGUF file"):
        GGUFFile(tmp_path / "none.gguf")
