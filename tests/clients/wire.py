"""A client of few words, for many streams at once: HTTP/1.1 over asyncio, one request a connection."""

import asyncio
import json
import socket
import struct


class Exchange:
    """One request and its answer."""

    def __init__(self, reader, writer):
        self.reader, self.writer = reader, writer
        self.status, self.headers = None, {}

    async def head(self):
        line = await self.reader.readline()
        while line.split(b" ")[1:2] == [b"100"]:  # interim
            await self.reader.readuntil(b"\r\n\r\n")
            line = await self.reader.readline()
        if not line:
            raise ConnectionResetError("closed without an answer")
        self.status = int(line.split(b" ")[1])
        while (line := await self.reader.readline()) not in (b"\r\n", b""):
            name, value = line.decode("latin1").split(":", 1)
            self.headers[name.lower()] = value.strip()
        return self.status

    async def chunks(self):
        """The pieces of a chunked body as they come."""
        while True:
            size = int((await self.reader.readline()).strip() or b"0", 16)
            data = await self.reader.readexactly(size + 2)
            if size == 0:
                return
            yield data[:-2]

    async def events(self):
        """The data of every event."""
        rest = b""
        async for chunk in self.chunks():
            *blocks, rest = (rest + chunk).split(b"\n\n")
            for block in blocks:
                for line in block.split(b"\n"):
                    if line.startswith(b"data: "):
                        yield line[6:]
        assert not rest, "a stream ends at the end of an event"

    async def body(self):
        return await self.reader.readexactly(int(self.headers["content-length"]))

    def close(self):
        self.writer.close()

    def reset(self):
        """Gone without a word: the server gets a reset."""
        sock = self.writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()


async def post(url, path, body, receive_buffer=None):
    host, port = url.removeprefix("http://").split(":")
    sock = socket.socket()
    if receive_buffer:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    sock.setblocking(False)
    await asyncio.get_running_loop().sock_connect(sock, (host, int(port)))
    reader, writer = await asyncio.open_connection(sock=sock, limit=1 << 16)
    data = json.dumps(body).encode()
    writer.write(f"POST {path} HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
                 f"Content-Length: {len(data)}\r\nConnection: close\r\n\r\n".encode() + data)
    await writer.drain()
    return Exchange(reader, writer)
