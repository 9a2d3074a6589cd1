"""TCP links between the parties of a yard, each of which can be stalled or cut by a test."""
import asyncio
import socket
import threading


def free_port():
    """A port that nobody listens on. Ports below those that connections take by themselves."""
    import random
    while True:
        port = random.randint(10000, 31000)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
                return port
            except OSError:
                continue


class Link:
    """Listens on `port` and hands everything on to 127.0.0.1:`target`, both ways, while it is open. Stalled: takes
    connections and bytes and hands nothing on. Cut: resets what is connected and whoever comes."""

    def __init__(self, links, target):
        self._links, self.target, self.port, self.state = links, target, None, "open"
        self._writers, self._open = set(), None

    async def _listen(self):
        self._open = asyncio.Event()
        self._open.set()
        server = await asyncio.start_server(self._connect, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]

    async def _connect(self, reader, writer):
        if self.state == "cut":
            writer.transport.abort()
            return
        self._writers.add(writer)
        other = None
        try:
            await self._open.wait()
            other_reader, other = await asyncio.open_connection("127.0.0.1", self.target)
            self._writers.add(other)
            await asyncio.gather(self._pump(reader, other), self._pump(other_reader, writer))
        except OSError:
            pass
        finally:
            for one in (writer, other):
                if one is not None:
                    one.transport.abort()
                    self._writers.discard(one)

    async def _pump(self, reader, writer):
        while True:
            data = await reader.read(65536)
            await self._open.wait()
            if not data:
                raise OSError("closed")
            writer.write(data)
            await writer.drain()

    def _set(self, state):
        self.state = state
        if state == "stalled":
            self._open.clear()
        else:
            self._open.set()
        if state == "cut":
            for writer in list(self._writers):
                writer.transport.abort()

    def set(self, state):
        """state: open, stalled or cut."""
        self._links.call(self._set, state)


class Links:
    """All links of a yard, moved by one thread."""

    def __init__(self):
        self._loop = asyncio.new_event_loop()
        self._loop.set_exception_handler(lambda loop, context: None)  # of connections that were cut
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self.all = []

    def make(self, target):
        link = Link(self, target)
        asyncio.run_coroutine_threadsafe(link._listen(), self._loop).result(10)
        self.all.append(link)
        return link

    def call(self, function, *arguments):
        done = threading.Event()

        def run():
            function(*arguments)
            done.set()
        self._loop.call_soon_threadsafe(run)
        assert done.wait(10)

    def close(self):
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
