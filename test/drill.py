#!/usr/bin/env python3
"""test/drill.py [--keep | --edits]: follows doc/add-a-variant.md to the letter, on a copy of the tree under build/.

A fenced block of the document is a step when its first line names what to do:

    ```diff FILE        lines with - become lines with +; those with neither must be there, once
    ```c FILE           a new file
    ```text >>FILE      lines for the end of a file
    ```sh               commands, in the copy; each must succeed

Prints "ok NAME" or "FAIL NAME: why" for every step, NAME being the heading and the file, and removes the copy. --keep leaves it
in build/drill. --edits leaves the commands out, which takes no time and tells whether every step still finds its place.
"""
import os
import re
import shutil
import subprocess
import sys
import time

sys.dont_write_bytecode = True  # nothing is left beside the sources
import style

TOP = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
DOCUMENT = os.path.join(TOP, 'doc/add-a-variant.md')
COPY = os.path.join(TOP, 'build/drill-edits' if '--edits' in sys.argv else 'build/drill')


class Refused(Exception):
    pass


def steps(text):
    """(heading, what the block's first line says, the block) of every step."""
    heading, block, found = '', None, []
    for line in text.split('\n'):
        if block is not None and line == '```':
            if re.match(r'diff \S|c \S|text >>|sh$', info):
                found.append((heading, info, '\n'.join(block) + '\n'))
            elif re.match(r'diff|c\b|sh', info):
                raise Refused('a step that says not of which file: ' + info)
            block = None
        elif block is not None:
            block.append(line)
        elif line.startswith('```'):
            info, block = line[3:], []
        elif line.startswith('## '):
            heading = line[3:]
    return found


def make_copy():
    """The tree as it is now, without what is built."""
    for path in style.tree_files():
        os.makedirs(os.path.dirname(os.path.join(COPY, path)), exist_ok=True)
        shutil.copy2(os.path.join(TOP, path), os.path.join(COPY, path))


def change(path, block):
    """A diff without line numbers: what it finds must be there exactly once. An empty line divides changes to one file."""
    with open(os.path.join(COPY, path), encoding='utf-8') as file:
        text = file.read()
    for part in block.rstrip('\n').split('\n\n'):
        lines = part.split('\n')
        if any(line[0] not in ' -+' for line in lines):
            raise Refused('a line begins with neither a space nor - nor +')
        old = ''.join(line[1:] + '\n' for line in lines if line[0] != '+')
        new = ''.join(line[1:] + '\n' for line in lines if line[0] != '-')
        if ('\n' + text).count('\n' + old) != 1:
            raise Refused('there %d times, not once:\n%s' % (('\n' + text).count('\n' + old), old))
        text = ('\n' + text).replace('\n' + old, '\n' + new)[1:]
    with open(os.path.join(COPY, path), 'w', encoding='utf-8') as file:
        file.write(text)


def follow(info, block):
    kind, _, path = info.partition(' ')
    if kind == 'diff':
        change(path, block)
    elif kind == 'sh':
        for command in re.sub(r'\\\n *', '', block).rstrip('\n').split('\n'):
            start = time.time()
            done = subprocess.run(['bash', '-euc', 'set -o pipefail; ' + command], cwd=COPY, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            print('+ %s  # %d s' % (command, time.time() - start))
            if done.returncode:
                raise Refused('exit status %d of: %s\n%s' % (done.returncode, command, '\n'.join(done.stdout.split('\n')[-30:])))
    elif path.startswith('>>'):
        with open(os.path.join(COPY, path[2:]), 'a', encoding='utf-8') as file:
            file.write(block)
    elif os.path.exists(os.path.join(COPY, path)):
        raise Refused('it is there already')
    else:
        with open(os.path.join(COPY, path), 'w', encoding='utf-8') as file:
            file.write(block)


def main():
    keep, edits, bad = '--keep' in sys.argv, '--edits' in sys.argv, 0
    with open(DOCUMENT, encoding='utf-8') as file:
        todo = steps(file.read())
    shutil.rmtree(COPY, ignore_errors=True)
    make_copy()
    os.environ['AURA_QUICK'] = '1'
    for heading, info, block in todo:
        name = 'drill %s: %s' % (heading, info)
        if edits and info == 'sh':
            continue
        try:
            follow(info, block)
            print('ok %s' % name, flush=True)
        except (Refused, OSError) as why:
            print('%s\nFAIL %s: %s' % (why, name, str(why).split('\n')[0]), flush=True)
            bad = 1
            break
    if not keep:
        shutil.rmtree(COPY, ignore_errors=True)
    if len(todo) < 10:
        print('FAIL drill: the document has only %d steps' % len(todo))
        bad = 1
    sys.exit(bad)


if __name__ == '__main__':
    main()
