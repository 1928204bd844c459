#!/usr/bin/env python3
"""example.py MODEL.gguf [PROMPT]: llama-cpp-python with a cache of aura's, on the library that build.sh has built:

    pip install numpy diskcache jinja2 typing_extensions
    LLAMA_CPP_LIB_PATH=DIR/aura/build/bin PYTHONPATH=DIR/llama_cpp_python-0.3.36 python3 example.py MODEL.gguf

DIR is PEERS_DIR. Cut, state and restore are as with any cache: here the same question is asked twice, from a saved state."""
import sys

import llama_cpp

AURA = {2: 43, 3: 44, 4: 45, 5: 46, 6: 47, 8: 48}  # GGML_TYPE_AURA2 ... as edit.py numbers them

model = llama_cpp.Llama(sys.argv[1], n_ctx=2048, n_threads=2, type_k=AURA[4], type_v=AURA[4], verbose=True)
prompt = sys.argv[2] if len(sys.argv) > 2 else "The capital of France is"
model.eval(model.tokenize(prompt.encode()))
state = model.save_state()
print("answer:", model(prompt, max_tokens=16, temperature=0)["choices"][0]["text"])
model.reset()
model.load_state(state)
print("answer:", model(prompt, max_tokens=16, temperature=0)["choices"][0]["text"])
