#!/usr/bin/env python3
"""examples/codec.py IN OUT: a codec for `aura eval --codec` and `aura attend --codec`: 8 bits, a scale for each vector."""
import json
import struct
import sys

import numpy as np

data = open(sys.argv[1], 'rb').read()
at = 8 + struct.unpack('<Q', data[:8])[0]
out, head = b'', {}
for name, t in json.loads(data[8:at]).items():
    x = np.frombuffer(data[at + t['data_offsets'][0]:at + t['data_offsets'][1]], '<f4').reshape(t['shape'])
    scale = np.abs(x).max(-1, keepdims=True) / 127 + 1e-30  # [tokens][heads][1]
    y = (np.round(x / scale) * scale).astype('<f4').tobytes()  # encoded and decoded: put your own here
    head[name] = dict(t, data_offsets=[len(out), len(out) + len(y)])
    out += y
head['bits'] = dict(dtype='F32', shape=[1], data_offsets=[len(out), len(out) + 4])
text = json.dumps(head).encode()
open(sys.argv[2], 'wb').write(struct.pack('<Q', len(text)) + text + out + struct.pack('<f', 8 + 32 / x.shape[-1]))
