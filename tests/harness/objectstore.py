"""An S3 server in this process: moto, on a free port of 127.0.0.1."""

from __future__ import annotations

import urllib.request
from collections.abc import Iterator

import boto3
import pytest
from moto.server import ThreadedMotoServer

KEY = "AKIAFOLDMQTEST"
SECRET = "secret/of+the=archive"
BUCKET = "bucket"


class ObjectStoreServer:
    """The server, with one bucket."""

    def __init__(self) -> None:
        self._server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)

    def start(self) -> None:
        """Start it and create the bucket."""
        self._server.start()
        host, port = self._server.get_host_and_port()
        self.place = f"{host}:{port}"
        self.client = boto3.client(
            "s3",
            endpoint_url=self.url,
            region_name="us-east-1",
            aws_access_key_id=KEY,
            aws_secret_access_key=SECRET,
        )
        self.client.create_bucket(Bucket=BUCKET)

    def stop(self) -> None:
        """Stop it."""
        self._server.stop()

    @property
    def url(self) -> str:
        """Its URL."""
        return f"http://{self.place}"

    @property
    def environment(self) -> dict[str, str]:
        """The variables with which programs use it."""
        return {
            "AWS_ACCESS_KEY_ID": KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_ENDPOINT_URL": self.url,
            "AWS_REGION": "us-east-1",
        }

    def uri(self, path: str, bucket: str = BUCKET) -> str:
        """Return the URI of a directory, with everything needed to use it."""
        secret = SECRET.replace("/", "%2F").replace("+", "%2B").replace("=", "%3D")
        return (
            f"s3://{KEY}:{secret}@{bucket}/{path}"
            f"?endpoint_override={self.place}&scheme=http&region=us-east-1"
        )

    def names(self, path: str) -> set[str]:
        """Return the names of the objects below a path, without it."""
        pages = self.client.get_paginator("list_objects_v2").paginate(
            Bucket=BUCKET, Prefix=f"{path}/"
        )
        entries = [entry for page in pages for entry in page.get("Contents", [])]
        return {entry["Key"].removeprefix(f"{path}/") for entry in entries}

    def objects(self, path: str) -> dict[str, bytes]:
        """Return the objects below a path, by their names without it."""
        return {
            name: self.client.get_object(Bucket=BUCKET, Key=f"{path}/{name}")["Body"].read()
            for name in self.names(path)
        }

    def require_credentials(self, *, required: bool) -> None:
        """Refuse unknown credentials, which are all, or accept all."""
        count = b"0" if required else b"inf"
        urllib.request.urlopen(
            urllib.request.Request(
                f"{self.url}/moto-api/reset-auth", count, {"Content-Type": "text/plain"}
            )
        ).close()


@pytest.fixture(scope="module")
def object_store() -> Iterator[ObjectStoreServer]:
    """A server for the tests of a module, which use paths of their own."""
    server = ObjectStoreServer()
    server.start()
    yield server
    server.stop()
