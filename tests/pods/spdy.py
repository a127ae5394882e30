"""The server's side of SPDY/3.1, over which kubectl opens streams for `exec`, `cp` and `port-forward`.

A stream is a number and the headers that it was opened with, each answered at once. No flow control: neither does
kubectl's side have any. Receiving is for one thread; sending is thread-safe.
"""

import struct
import threading
import zlib

WORDS = (
    "options head post put delete trace accept accept-charset accept-encoding accept-language accept-ranges age allow authorization "
    "cache-control connection content-base content-encoding content-language content-length content-location content-md5 "
    "content-range content-type date etag expect expires from host if-match if-modified-since if-none-match if-range "
    "if-unmodified-since last-modified location max-forwards pragma proxy-authenticate proxy-authorization range referer "
    "retry-after server te trailer transfer-encoding upgrade user-agent vary via warning www-authenticate method get status "
    "200_OK version HTTP/1.1 url public set-cookie keep-alive origin")
REST = (
    "100101201202205206300302303304305306307402405406407408409410411412413414415416417502504505203 Non-Authoritative "
    "Information204 No Content301 Moved Permanently400 Bad Request401 Unauthorized403 Forbidden404 Not Found500 Internal "
    "Server Error501 Not Implemented503 Service UnavailableJan Feb Mar Apr May Jun Jul Aug Sept Oct Nov Dec 00:00:00 Mon, Tue, "
    "Wed, Thu, Fri, Sat, Sun, GMTchunked,text/html,image/png,image/jpg,image/gif,application/xml,application/xhtml+xml,"
    "text/plain,text/javascript,publicprivatemax-age=gzip,deflate,sdchcharset=utf-8charset=iso-8859-1,utf-,*,enq=0.")
# With which both sides begin to compress headers.
DICTIONARY = b"".join(struct.pack(">I", len(word)) + word.replace("_", " ").encode() for word in WORDS.split()) + REST.encode()
SYN_STREAM, SYN_REPLY, RST_STREAM, PING, GOAWAY = 1, 2, 3, 6, 7
FIN = 1


class Connection:
    def __init__(self, reader, socket):
        self._reader, self._socket = reader, socket
        self._inflate = zlib.decompressobj(zdict=DICTIONARY)
        self._deflate = zlib.compressobj(zdict=DICTIONARY)
        self._lock = threading.Lock()

    def send(self, stream, data=b"", last=False):
        with self._lock:
            self._socket.sendall(struct.pack(">II", stream, (FIN if last else 0) << 24 | len(data)) + data)

    def events(self):
        """(stream, headers, None) of one that was opened, (stream, data, whether it was the last) until the other side has left."""
        while head := self._read(8):
            first, second = struct.unpack(">II", head)
            body = self._read(second & 0xFFFFFF)
            last = bool(second >> 24 & FIN)
            if not first >> 31:
                yield first, body, last
                continue
            kind = first & 0xFFFF
            if kind == SYN_STREAM:
                stream = struct.unpack(">I", body[:4])[0]
                headers = self._headers(self._inflate.decompress(body[10:]))
                self._control(SYN_REPLY, body[:4], struct.pack(">I", 0))
                yield stream, headers, None
                if last:
                    yield stream, b"", True
            elif kind == RST_STREAM:
                yield struct.unpack(">I", body[:4])[0], b"", True
            elif kind == PING:
                self._control(PING, body)
            elif kind == GOAWAY:
                return

    def _control(self, kind, body, headers=None):
        with self._lock:
            if headers is not None:
                body += self._deflate.compress(headers) + self._deflate.flush(zlib.Z_SYNC_FLUSH)
            self._socket.sendall(struct.pack(">II", 0x80030000 | kind, len(body)) + body)

    def _read(self, size):
        """Less where the other side has left."""
        try:
            return self._reader.read(size)
        except OSError:
            return b""

    @staticmethod
    def _headers(block):
        (count,), at, texts = struct.unpack(">I", block[:4]), 4, []
        for _ in range(2 * count):
            (size,) = struct.unpack(">I", block[at:at + 4])
            texts.append(block[at + 4:at + 4 + size].decode())
            at += 4 + size
        return dict(zip(texts[::2], texts[1::2]))
