"""The client's side of SCRAM-SHA-256, from RFC 5802 alone, for tests only."""

import base64
import hashlib
import hmac
import secrets


class ScramClient:
    """One login; ``channel_binding`` is the flag of the first message."""

    def __init__(
        self, user: str, password: str, channel_binding: str = "n", nonce: str | None = None
    ) -> None:
        self.password = password.encode()
        self.nonce = nonce or secrets.token_urlsafe(18)
        self.header = f"{channel_binding},,"
        name = user.replace("=", "=3D").replace(",", "=2C")
        self.bare = f"n={name},r={self.nonce}"
        self.signature = b""
        """What the server has to prove that it knows the password, too."""

    @property
    def first(self) -> bytes:
        return (self.header + self.bare).encode()

    def challenge(self, server_first: bytes) -> dict[str, str]:
        """The attributes of the server's first message."""
        return dict(part.split("=", 1) for part in server_first.decode().split(","))  # type: ignore[misc]  # all are pairs

    def final(self, server_first: bytes) -> bytes:
        """The last message, for what the server answered to the first one."""
        found = self.challenge(server_first)
        assert found["r"].startswith(self.nonce)
        assert len(found["r"]) > len(self.nonce)
        salt = base64.b64decode(found["s"], validate=True)
        rounds = int(found["i"])
        block = hmac.new(self.password, salt + b"\0\0\0\1", "sha256").digest()
        salted = int.from_bytes(block)
        for _ in range(rounds - 1):
            block = hmac.new(self.password, block, "sha256").digest()
            salted ^= int.from_bytes(block)
        key = salted.to_bytes(32)
        client_key = hmac.new(key, b"Client Key", "sha256").digest()
        head = base64.b64encode(self.header.encode()).decode()
        unproven = f"c={head},r={found['r']}"
        message = f"{self.bare},{server_first.decode()},{unproven}".encode()
        stored_key = hashlib.sha256(client_key).digest()
        blind = hmac.new(stored_key, message, "sha256").digest()
        proof = int.from_bytes(client_key) ^ int.from_bytes(blind)
        server_key = hmac.new(key, b"Server Key", "sha256").digest()
        self.signature = hmac.new(server_key, message, "sha256").digest()
        return f"{unproven},p={base64.b64encode(proof.to_bytes(32)).decode()}".encode()

    def trusts(self, server_final: object) -> bool:
        """Whether the server's last message proves that it knows the password."""
        return server_final == b"v=" + base64.b64encode(self.signature)
