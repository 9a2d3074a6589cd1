"""What a rank wrote into its events.log (executor/run/event_log.h, proto/trainyard/v1/run.proto), read without protobuf."""
import collections
import struct

# `body`: the fields of the message `what` by number, an integer or bytes each, the last one of each number.
Event = collections.namedtuple("Event", "sequence time_us what body")
WHAT = {3: "started", 4: "restored", 5: "metrics", 6: "checkpoint", 7: "notice", 8: "failure", 9: "finished", 10: "exited"}


def _varint(data, at):
    value = shift = 0
    while at < len(data):
        value |= (data[at] & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if data[at - 1] < 0x80:
            return value, at
    raise ValueError("a number that is cut off")


def _fields(data):
    found, at = {}, 0
    while at < len(data):
        key, at = _varint(data, at)
        if key & 7 == 0:
            found[key >> 3], at = _varint(data, at)
            continue
        length = {1: 8, 5: 4}.get(key & 7)
        if key & 7 == 2:
            length, at = _varint(data, at)
        if length is None or at + length > len(data):
            raise ValueError(f"field {key >> 3} of wire type {key & 7} at byte {at} of {len(data)}")
        found[key >> 3], at = data[at:at + length], at + length
    return found


def read(path):
    """The events that are whole; none while there is no such file. Checksums are not looked at: a record that is still
    being written is one that is too short."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return []
    events, at = [], 0
    while at + 8 <= len(data):
        length = struct.unpack_from("<I", data, at)[0]
        payload = data[at + 8:at + 8 + length]
        if len(payload) < length:
            break
        found = _fields(payload)
        number, what = next(((number, what) for number, what in WHAT.items() if number in found), (None, None))
        events.append(Event(found.get(1, 0), found.get(2, 0), what, _fields(found[number]) if number else {}))
        at += 8 + length
    return events
