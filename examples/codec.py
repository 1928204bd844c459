#!/usr/bin/env python3
"""examples/codec.py IN OUT: a codec for `aura eval --codec` and `aura attend --codec`: 8 bits, a scale for each vector."""
import array, json, struct, sys

data = open(sys.argv[1], 'rb').read()
at = 8 + struct.unpack('<Q', data[:8])[0]
head, out = json.loads(data[8:at]), array.array('f')
for tensor in head.values():
    first, end, dim = *tensor['data_offsets'], tensor['shape'][2]
    x = array.array('f', data[at + first:at + end])  # [tokens][heads][dim]
    tensor['data_offsets'] = [4 * len(out), 4 * len(out) + end - first]
    for i in range(0, len(x), dim):  # encoded and decoded: put your own here
        scale = max(map(abs, x[i:i + dim])) / 127 or 1
        out.extend(round(a / scale) * scale for a in x[i:i + dim])
head['bits'] = dict(dtype='F32', shape=[1], data_offsets=[4 * len(out), 4 * len(out) + 4])
text = json.dumps(head).encode()
open(sys.argv[2], 'wb').write(struct.pack('<Q', len(text)) + text + out.tobytes() + struct.pack('<f', 8 + 32 / dim))
