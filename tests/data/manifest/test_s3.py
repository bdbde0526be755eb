"""Manifests and outputs on S3, as a local server plays it. Run where moto, its server and s3fs are installed:
`pip install s3fs 'moto[s3]' flask flask-cors`; they are too much for every run of the tests."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from vitrail.data.manifest.list_images import list_images, place_of
from vitrail.data.manifest.manifest_file import open_manifest, write_manifest
from vitrail.errors import VitrailError
from vitrail.shards.jobs.check_job import CheckJob
from vitrail.shards.merge_shards import merge_shards
from vitrail.shards.run_job import run_job
from vitrail.shards.shard_options import ShardOptions
from vitrail.storage import _filesystem, read_bytes, write_bytes

moto_server = pytest.importorskip("moto.server", reason="moto and its server are not installed")
pytest.importorskip("s3fs", reason="s3fs is not installed")


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    server = moto_server.ThreadedMotoServer(port=0)
    server.start()
    host, port = server.get_host_and_port()
    for name, value in {
        "AWS_ACCESS_KEY_ID": "x",
        "AWS_SECRET_ACCESS_KEY": "x",
        "AWS_DEFAULT_REGION": "us-east-1",
    }.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{host}:{port}")
    _filesystem.cache_clear()
    _filesystem("s3").mkdir("photos-bucket")
    yield "s3://photos-bucket"
    server.stop()
    _filesystem.cache_clear()


def test_listed_read_and_written_on_s3(bucket: str, tmp_path: Path) -> None:
    from PIL import Image

    file = io.BytesIO()
    Image.new("RGB", (20, 30), "red").save(file, "PNG")
    picture = file.getvalue()
    for name in ("data/cat/10.png", "data/cat/9.png", "data/dog/1.png"):
        write_bytes(f"{bucket}/{name}", picture)
    tar_bytes = io.BytesIO()
    with tarfile.open(fileobj=tar_bytes, mode="w") as tar:
        info = tarfile.TarInfo("0001.png")
        info.size = len(picture)
        tar.addfile(info, io.BytesIO(picture))
    write_bytes(f"{bucket}/data/more.tar", tar_bytes.getvalue())

    manifest = write_manifest(list_images(*place_of(f"{bucket}/data")), f"{bucket}/data", f"{bucket}/m", shard_size=3)
    assert [row.name for row in manifest.rows(manifest.shards[0])] == ["cat/9.png", "cat/10.png", "dog/1.png"]
    opened = open_manifest(f"{bucket}/m")
    assert opened == manifest and opened.images_of(opened.shards[1])[0].read() == picture  # by a range of bytes

    out = f"{bucket}/checked"
    assert run_job(CheckJob(), f"{bucket}/m", out, ShardOptions()).errors == 0
    assert run_job(CheckJob(), f"{bucket}/m", out, ShardOptions()).before == 2
    merge_shards(out, tmp_path / "all.jsonl")
    assert (tmp_path / "all.jsonl").read_text().count('"width": 20') == 4
    with pytest.raises(VitrailError, match="does not exist"):
        read_bytes(f"{bucket}/data/none.png")
    with pytest.raises(VitrailError, match="does not exist"):
        place_of("s3://no-such-bucket/data")
