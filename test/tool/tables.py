#!/usr/bin/env python3
"""test/tool/tables.py AURA MODEL FOLDER: every command that prints a table, as JSON and as CSV.

Both must parse and say what the table is of; every row of CSV has as many fields as there are names; and what JSON calls a number of a
row is a column of that name. MODEL is one of `test_llm --write`. Prints a line per test, as test/run.sh wants it.
"""
import csv
import io
import json
import subprocess
import sys

AURA, MODEL, FOLDER = sys.argv[1:4]
RECORDING = 'data/smollm2-attention.safetensors'
ONE = ['bench', '--dim', '64', '--heads', '2', '--kv-heads', '1', '--tokens', '64', '--threads', '1']
MACHINE = ['version', 'cpu']  # but of files and texts, which are the same everywhere
PROFILE = FOLDER + '/tables.profile'

# The command; how many rows it has, 0: some; what they are of, besides the machine; a column, and a value that is in it. The rows
# of the last few come in the course of seconds: the first are enough.
TABLES = [
    (['demo', '--quick', '--threads', '1'], 0, ['file', 'seed', 'isa', 'threads'], 'cache', 'k4v4'),
    (['eval', MODEL, '--text', 'README.md', '--ctx', '16', '--chunks', '1', '--cache', 'k4v4,q4_0'], 2,
     ['model', 'text', 'seed', 'isa', 'threads'], 'cache', 'q4_0'),
    (['calibrate', MODEL, '--text', 'README.md', '--tokens', '64', '-o', PROFILE], 1, ['model', 'text'], 'profile', PROFILE),
    (['attend', RECORDING, '--layer', '18', '--cache', 'k4v4,q4_0'], 2, ['file', 'seed', 'isa'], 'cache', 'q4_0'),
    (['inspect', PROFILE], 2, ['file', 'version', 'checksum'], 'layer', '1'),
    (ONE, 1, ['bench', 'compiler', 'threads', 'isa'], 'format', 'k4v4'),
    (ONE + ['--prefill', '--queries', '8'], 1, ['bench', 'compiler', 'threads', 'isa'], 'format', 'k4v4'),
    (['bench', '--model', MODEL, '--depth', '0,40', '--cache', 'k4v4,f16', '--threads', '1'], 4,
     ['bench', 'model', 'compiler', 'threads'], 'cache', 'kf16vf16'),
    (['check', 'query_any', '--isa', 'ref', '--no-times', '--seed', '7'], 1, ['seed', 'compiler'], 'variant', 'query_any_ref'),
    (['list'], 0, [], 'variant', 'encode_b4_ref'),
    (['tokens', MODEL, '-p', 'ab,"'], 3, [], 'text', '"'),
]
STREAMS = [
    (['bench', '--threads', '1'], ['bench', 'compiler', 'threads', 'isa'], 'format', 'k8v8'),
    (['bench', 'rows'], ['bench', 'compiler', 'threads'], 'name', 'score int4, D 128, GQA 4'),
]


def run(command, lines=None):
    with subprocess.Popen([AURA] + command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as child:
        if lines is None:
            text = child.communicate()[0]
            assert child.returncode == 0, 'exit status %d' % child.returncode
        else:
            text = ''.join(child.stdout.readline() for _ in range(lines))
            child.kill()
    return text


def names_in(value):
    """The names of everything in a JSON value, however deep."""
    if isinstance(value, list):
        return set().union(set(), *map(names_in, value))
    return set(value).union(*map(names_in, value.values())) if isinstance(value, dict) else set()


def check_csv(text, origin, column, value):
    head, *rows = csv.reader(io.StringIO(text))
    assert len(set(head)) == len(head), 'a name twice: %s' % head
    assert rows and all(len(row) == len(head) for row in rows), 'rows of %s fields, %d names' % ({len(r) for r in rows}, len(head))
    lacks = [name for name in origin if name not in head]
    assert not lacks, 'CSV does not say: %s' % lacks
    table = [dict(zip(head, row)) for row in rows]
    assert 'cpu' not in origin or all(row['version'] == VERSION for row in table), table[0]
    assert all(row[name] for row in table for name in origin), table[0]
    assert value in [row[column] for row in table], 'no %s has %s' % (column, value)
    return table


def check_json(text, table, origin):
    whole = json.loads(text)
    lacks = [name for name in origin if name not in names_in(whole)]
    assert not lacks, 'JSON does not say: %s' % lacks
    lists = [v for v in whole.values() if isinstance(v, list)] if isinstance(whole, dict) else [whole]
    rows = next((v for v in lists if v and isinstance(v[0], dict)), [])
    for name, x in (rows[0] if rows else {}).items():
        if isinstance(x, (int, float)) and not isinstance(x, bool) and name not in ('pages', 'bytes'):
            assert name in table[0] or name.endswith('_se'), 'CSV has no %s' % name


def tried(name, test, *arguments):
    try:
        test(*arguments)
        print('ok tables: ' + name)
    except (AssertionError, ValueError, StopIteration) as error:
        print('FAIL tables: %s: %s' % (name, error))


def whole_table(command, count, origin, column, value):
    table = check_csv(run(command + ['--csv']), origin, column, value)
    assert not count or len(table) == count, '%d rows, not %d' % (len(table), count)
    check_json(run(command + ['--json']), table, origin)


def stream(command, origin, column, value):
    check_csv(run(command + ['--csv'], 3), origin, column, value)


VERSION = run(['version']).split()[-1]
for row in TABLES:
    tried(' '.join(row[0][:2]), whole_table, row[0], row[1], MACHINE * (row[0][0] not in ('tokens', 'inspect')) + row[2], *row[3:])
for row in STREAMS:
    tried(' '.join(row[0][:2]), stream, row[0], MACHINE + row[1], *row[2:])
