#!/usr/bin/python3
"""Who is no rank of a gang and behaves as if it were, until it is killed.

    liar.py connect KIND HOST:PORT...   to each of these, again and again
    liar.py listen HOST:PORT            takes the place of a rank, if it is free
"""
import hashlib
import os
import socket
import struct
import sys
import time

VERSION = b"trainyard 0.0.0, attempt 1 of somebody"


def greeting(rank, peer, size, version=VERSION):
    """As executor/engine/parallel/README.md describes it."""
    return (b"trainyrd" + struct.pack("<IHHIIII", 1, 1, len(version), rank, peer, size, 0) + os.urandom(32) +
            hashlib.sha256(version).digest() + version[:96].ljust(96, b"\0"))


def connect(kind, address):
    host, port = address.rsplit(":", 1)
    with socket.create_connection((host, int(port)), timeout=0.5) as connection:
        connection.settimeout(0.5)
        if kind == "silent":
            connection.recv(1)
        elif kind == "noise":
            connection.sendall(os.urandom(4096))
        elif kind == "secret":  # it has another one, and says what it likes instead of proofs
            connection.sendall(greeting(3, 0, 4))
            connection.recv(224)
            connection.sendall(os.urandom(32))
            connection.recv(32)
        else:  # another version, or another gang
            for rank, peer, size in ((1, 0, 2), (70000, 0, 1 << 31), (0, 0, 4)):
                connection.sendall(greeting(rank, peer, size, b"trainyard 99"))
            connection.recv(224)


def main():
    what, *rest = sys.argv[1:]
    if what == "listen":
        host, port = rest[0].rsplit(":", 1)
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        while True:
            try:
                listener.bind((host, int(port)))
                break
            except OSError:  # a rank is there
                time.sleep(0.02)
        listener.listen(16)
        while True:
            with listener.accept()[0] as connection:
                connection.settimeout(0.5)
                try:
                    connection.recv(192)
                    connection.sendall(greeting(0, 1, 2) + os.urandom(32))
                    connection.recv(32)
                except OSError:
                    pass
    kind, *addresses = rest
    while True:
        for address in addresses:
            try:
                connect(kind, address)
            except OSError:
                pass
        time.sleep(0.01)


if __name__ == "__main__":
    main()
