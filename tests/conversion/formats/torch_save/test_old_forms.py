"""Files of torch.save before PyTorch 1.6, OmegaConf's configurations in files, and what torch.jit.save wrote."""

from __future__ import annotations

import base64
import pickle
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import ucpformat
from tests.conversion.formats.torch_save.test_files import RAN, Malicious
from tests.conversion.jobs import whole
from ucpformat.conversion.convert import convert_checkpoint, detect_format
from ucpformat.conversion.formats.torch_save.importer import import_torch_save
from ucpformat.errors import UcpError
from ucpformat.tensor_files.tagged import decode


def old(path: Path, tree: object) -> Path:
    torch.save(tree, path, _use_new_zipfile_serialization=False)
    return path


def state() -> dict[str, Any]:
    weight = torch.arange(12.0).reshape(3, 4)
    return {
        "model": {
            "w": weight,
            "tied": weight,
            "column": weight[:, 1],
            "half": torch.ones(3, dtype=torch.bfloat16),
            "parameter": torch.nn.Parameter(torch.ones(2)),
            "none": torch.zeros(0, 2),
            "large": torch.randn(1 << 19),
        },
        "epoch": 3,
        # A pickle that is longer than what is read of the file at first.
        "text": "x" * (3 << 20),
    }


def test_every_tensor_is_what_torch_reads(tmp_path: Path) -> None:
    source = old(tmp_path / "a.pth", state())
    assert detect_format(source) == "torch-save"
    wanted = torch.load(source, weights_only=True)
    convert_checkpoint(source, tmp_path / "a.ucp", source_format="torch-save", destination_format="ucp")
    assert ucpformat.validate(tmp_path / "a.ucp") == []
    job = import_torch_save(source)
    found = whole(job)
    for name, tensor in wanted["model"].items():
        if name != "tied":
            bits = tensor.contiguous().reshape(-1).view(torch.uint8).numpy()
            assert np.array_equal(found[name, "value"].reshape(-1).view(np.uint8), bits), name
    assert next(atom for atom in job.atoms if atom.name == "w").aliases == ("tied",)
    assert job.state.values["epoch"] == 3
    assert job.state.values["text"] == "x" * (3 << 20)


def test_a_part_of_one_is_refused_by_name(tmp_path: Path) -> None:
    source = old(tmp_path / "a.pth", {"w": torch.ones(5), "b": torch.zeros(2, 2)})
    data = source.read_bytes()
    for length in [*range(14, len(data), 7), len(data) - 1]:
        source.write_bytes(data[:length])
        with pytest.raises(UcpError) as refusal:
            import_torch_save(source)
        assert refusal.value.code in ("UCP-E-SOURCE", "UCP-E-PICKLE")
        assert refusal.value.at == "a.pth"
    source.write_bytes(data + b"more")
    with pytest.raises(UcpError, match="goes on behind"):
        import_torch_save(source)


def test_nothing_in_one_is_run(tmp_path: Path) -> None:
    source = old(tmp_path / "a.pth", {"w": torch.ones(5), "evil": Malicious()})
    with pytest.raises(UcpError) as refusal:
        import_torch_save(source)
    assert (refusal.value.code, refusal.value.at) == ("UCP-E-PICKLE", "a.pth")
    assert not RAN


def _forged(path: Path, *, name: tuple[object, ...], keys: object, tail: bytes = b"") -> Path:
    """A file whose persistent id and list of storages say what they like."""

    class Pickler(pickle.Pickler):
        def persistent_id(self, item: object) -> object:
            return name if item is marker else None

    marker = object()
    head = old(path, {})
    start = len(b"".join(pickle.dumps(part, 2) for part in (0x1950A86A20F9469CFC6C, 1001)))
    begin = head.read_bytes()
    system = pickle.loads(begin[start:])
    with path.open("wb") as stream:
        for part in (0x1950A86A20F9469CFC6C, 1001, system):
            pickle.dump(part, stream, 2)
        Pickler(stream, 2).dump({"s": marker})
        pickle.dump(keys, stream, 2)
        stream.write(tail)
    return path


@pytest.mark.parametrize(
    ("name", "keys"),
    [
        (("storage", torch.FloatStorage, "0", "cpu", 1 << 62, None), ["0"]),
        (("storage", torch.FloatStorage, "0", "cpu", -1, None), ["0"]),
        (("storage", torch.FloatStorage, "0", "cpu", 0, None), ["1"]),
        (("storage", torch.FloatStorage, "0", "cpu", 0, None), 7),
        (("storage", torch.FloatStorage, "0", "cpu", 0, ("1", 0, 0)), ["0"]),
        (("module", "0"), []),
        (("storage", "x", "0", "cpu", 0, None), ["0"]),
    ],
)
def test_what_lies_is_refused(tmp_path: Path, name: tuple[object, ...], keys: object) -> None:
    with pytest.raises(UcpError) as refusal:
        import_torch_save(_forged(tmp_path / "a.pth", name=name, keys=keys))
    assert refusal.value.code in ("UCP-E-SOURCE", "UCP-E-PICKLE")


def test_torchscript_is_called_what_it_is(tmp_path: Path) -> None:
    """Its layout: code that is compressed, constants, and a data.pkl as torch.save has one."""
    source = tmp_path / "a.jit"
    with zipfile.ZipFile(source, "w") as archive:
        for name in ("data.pkl", "constants.pkl", "data/0", "version"):
            archive.writestr(f"a/{name}", b"x")
        archive.writestr("a/code/__torch__.py", b"x" * 99, zipfile.ZIP_DEFLATED)
    assert detect_format(source) == "torch-save"
    with pytest.raises(UcpError, match=r"TorchScript archive .*torch\.jit\.load and save its state_dict\(\)"):
        import_torch_save(source)


# pickle.dumps({"hyper_parameters": c, "again": c, "sub": c.l}, 2) by omegaconf 2.3.0 of
# c = OmegaConf.create({"lr": 0.1, "name": "x", "l": [1, {"a": None}], "ref": "${lr}", "m": "???"}).
OMEGACONF = """
c-m!@X;afs6oy+00-+$FB8a;bg9}*qy|O6EQZ;T-#F(VFz0ow`&BDkycSb)rBR@g^iT}=XlNQslUwZCM&U4=L-
gEP<OCYD}!?|3J?`*Na*fImN$s!hn$lHFCHB8(0>a#V+j%468lqCum(-2)V-
%$|gR`q@&7?fz%%*aGfCe<=Srcgp;IvxwwTdyeCN4dQMeX8C^xdE#i5h*~wO@EHpQ0BcI1&TgE4}I$sv!nF+fNdC7?6{HR8HOTtD
JUige=Bl)&vY^PQ!mi^Guy#XRqvs&?wXAd`vrz|rM)x)-;Xe|s}CjRL*Lz|{%zCd45PN~yDrrvV5rns-HhERt#yDGf8d~oLrG1lk
;)q5ie97*=CUU9T3QctCARclX$|>G+ZeAVX$CnH$@PT55moP^EjPeq#x>8cu~2$Yr9i<^GV7SYah3mP?LS9P&`T!;PN}?~D}12J2
Y>P*KFO)?(|lx?kMczP84Xjh#m9L;@0MD&$+FUN<<Bqq`%Qx7u18aVX)f!Y6;P=zm-rchbDj8Ui9esgU(j$d#q*M$C)5|r5>!Sm<
}&JCCv4Bu8inndx<qBl0+(e;IU`pDuC_{c9KB3ea4l6aCska}sJNlwCLile@M)@Wizla&=$qKYZ8hofj=<e^kM{)bcl5ZLlk`f4{
y@Wg!YK37YMvr_5f%g%+oG2Q9<~^~m_qUr@+bpY*6^6q-
0TS|a~g*yiBl$45?!kTYi(WY0@Y6MS0wUj2Kh|G^8~fPOV!v4V~dgXh4g+wOOP)FUbd011YUO{HHmzaLFyXb?j5JROH*InK;T{LN
SoM5sP6?f+td#NMkjScQa@&>rUq+|D)m(=71*&A6IK>68}zk6jYd>Hq&~oSIiCFs%-wKB
"""


def test_configurations_are_plain_data(tmp_path: Path) -> None:
    data = zlib.decompress(base64.b85decode(OMEGACONF.replace("\n", "")))
    source = tmp_path / "a.ckpt"
    torch.save({"state_dict": {"w": torch.ones(2)}}, source)
    with zipfile.ZipFile(tmp_path / "b.ckpt", "w") as archive:
        archive.writestr("b/data.pkl", data)
        archive.writestr("b/byteorder", b"little")
        archive.writestr("b/version", b"3")
    values = {
        name: decode(value, at=name)
        for name, value in import_torch_save(tmp_path / "b.ckpt").state.values.items()
    }
    one = {"lr": 0.1, "name": "x", "l.0": 1, "l.1.a": None, "ref": "${lr}", "m": "???"}
    wanted = {
        f"{place}.{name}": value for place in ("hyper_parameters", "again") for name, value in one.items()
    }
    assert values == wanted | {"sub.0": 1, "sub.1.a": None}


def test_a_configuration_that_refers_to_itself_is_refused(tmp_path: Path) -> None:
    data = (
        b"\x80\x02}(X\x01\x00\x00\x00acomegaconf.dictconfig\nDictConfig\n)\x81q\x00"
        b"}X\x08\x00\x00\x00_contenth\x00sbu."
    )
    with zipfile.ZipFile(tmp_path / "b.ckpt", "w") as archive:
        archive.writestr("b/data.pkl", data)
    with pytest.raises(UcpError) as refusal:
        import_torch_save(tmp_path / "b.ckpt")
    assert refusal.value.code in ("UCP-E-PICKLE", "UCP-E-OBJECT")
