"""The committed gRPC modules match externalscaler.proto."""

from pathlib import Path

from grpc_tools import protoc

from tests.support.paths import ROOT

PROTO = "comfyrelay/autoscaling/kubernetes/externalscaler.proto"


def test_generated_modules_match_the_proto(tmp_path: Path) -> None:
    outputs = [f"--{kind}_out={tmp_path}" for kind in ("python", "pyi")]
    assert protoc.main(["protoc", f"-I{ROOT / 'src'}", *outputs, PROTO]) == 0
    generated = sorted((tmp_path / PROTO).parent.iterdir())
    assert [path.name for path in generated] == ["externalscaler_pb2.py", "externalscaler_pb2.pyi"]
    for path in generated:
        assert (ROOT / "src" / PROTO).with_name(path.name).read_text("utf-8") == path.read_text("utf-8"), path.name
