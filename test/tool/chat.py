#!/usr/bin/env python3
"""test/tool/chat.py AURA MODEL FOLDER: conversations of `aura run` at a pseudo-terminal.

MODEL is one of `test_llm --write`: what it says means nothing, but is always the same. Prints a line per test, as test/run.sh wants
it. Where libedit is not installed, the tests of editing are skipped.
"""
import ctypes
import fcntl
import os
import pty
import re
import select
import signal
import struct
import sys
import termios
import time

AURA, MODEL, FOLDER = sys.argv[1:4]
PROMPT = rb'\x1b\[\?2004h> $'
PLAIN_PROMPT = rb'(?:^|\n)> $'
PATIENCE = 60  # seconds; a conversation here takes a tenth of one
bad = 0


class Stuck(Exception):
    pass


class Talk:
    """A conversation. `said` is what the terminal showed since the last thing that was typed."""

    def __init__(self, *options, term='xterm', columns=80):
        self.prompt = PLAIN_PROMPT if term == 'dumb' or not EDITS else PROMPT
        self.said = b''
        self.pid, self.file = pty.fork()
        if self.pid == 0:
            fcntl.ioctl(2, termios.TIOCSWINSZ, struct.pack('HHHH', 24, columns, 0, 0))
            os.environ.update(TERM=term, LC_ALL='C')
            os.environ.pop('NO_COLOR', None)
            os.execv(AURA, [AURA, 'run', MODEL, '--threads', '1', '--temp', '0', '--ctx', '4000'] + list(options))
        self.wait(self.prompt)

    def wait(self, pattern):
        end = time.time() + PATIENCE
        while not re.search(pattern, self.said):
            if not select.select([self.file], [], [], max(0, end - time.time()))[0]:
                raise Stuck('no %r in %r' % (pattern, self.said[-400:]))
            try:
                got = os.read(self.file, 65536)
            except OSError:
                got = b''
            if not got:
                raise Stuck('it ended after %r' % self.said[-400:])
            self.said += got

    def type(self, keys, until=None):
        """Types, waits for the next prompt or a pattern, and returns what was shown meanwhile."""
        self.said = b''
        os.write(self.file, keys)
        self.wait(until or self.prompt)
        return self.said.decode(errors='replace')

    def end(self, keys=b'/bye\r'):
        """Its exit status; a signal's number is below 0."""
        os.write(self.file, keys)
        end = time.time() + PATIENCE
        while time.time() < end:
            try:
                if select.select([self.file], [], [], 0.05)[0] and not os.read(self.file, 65536):
                    break
            except OSError:
                break
        status = os.waitpid(self.pid, 0)[1]
        os.close(self.file)
        return os.waitstatus_to_exitcode(status)

    def tokens(self):
        return int(re.search(r'context  (\d+) token', self.type(b'/stats\r')).group(1))


def test(function):
    """Runs a test; it fails with an assertion, or where something that it waits for does not come."""
    global bad
    name = function.__doc__
    try:
        function()
        print('ok chat: %s' % name)
    except (AssertionError, Stuck, AttributeError) as why:
        bad += 1
        print('FAIL chat: %s: %s' % (name, str(why).replace('\n', ' ')[:600] or 'line %d' % why.__traceback__.tb_next.tb_lineno))


def expect(text, shown):
    assert text in shown, 'no %r in %r' % (text, shown)


def answer_of(shown):
    """What the model said: between the end of the typed line and the line about it."""
    return shown.split('\r\n', 1)[1].rsplit('\r\n\x1b[2m', 1)[0].replace('\x1b[?2004l', '')


def an_answer():
    """an answer, and a dim line with its speed, the context and the bytes"""
    talk = Talk('-n', '8', '--no-learn')  # what a cache learns with is more than 27 tokens of so small a model
    shown = talk.type(b'ab\r')
    line = re.search(r'\x1b\[2m[\d.]+ tokens/s, (\d+) tokens of context, cache k4v4 ([\d.]+) MB \(f16: ([\d.]+) MB\)', shown)
    assert line, shown
    assert talk.tokens() == int(line.group(1)) and 0 < float(line.group(2)) < float(line.group(3)), line.group()
    assert talk.end() == 0


def larger_than_f16():
    """where few tokens take more than f16, the line says from when on they take less; /stats says what was done"""
    talk = Talk('-n', '8')
    shown = talk.type(b'ab\r')
    line = re.search(r'cache k4v4 ([\d.]+) MB \(f16: ([\d.]+) MB; smaller than that from (\d+) tokens on\)', shown)
    assert line and float(line.group(1)) > float(line.group(2)) and int(line.group(3)) % 256 == 0, shown
    shown = talk.type(b'/stats\r')
    assert re.search(r'work     \d+ tiles encoded, [\d.]+ s in attention', shown), shown
    assert talk.end() == 0


def one_token():
    """one token is no tokens"""
    talk = Talk('-n', '1')
    talk.type(b'ab\r')
    expect('answer: 1 token, ', talk.type(b'/stats\r'))
    assert talk.end(b'\x04') == 0


def commands():
    """/help has all commands, and an unknown one is no message"""
    talk = Talk('-n', '4')
    shown = talk.type(b'/help\r')
    for name in '/help /cache /save /load /clear /system /stats /bye'.split():
        assert name in shown, name
    expect('There is no command /nothing', talk.type(b'/nothing\r'))
    assert talk.tokens() == 0
    assert talk.end() == 0


def another_cache():
    """/cache switches the format, and the conversation goes on"""
    plain, switched = Talk('-n', '12', '--cache', 'f32'), Talk('-n', '12', '--cache', 'f32')
    assert answer_of(plain.type(b'ab\r')) == answer_of(switched.type(b'ab\r'))
    before = switched.tokens()
    expect('The cache is k3v3 now, %d tokens' % (before + 1), switched.type(b'/cache k3v3\r'))
    expect('k3v3', switched.type(b'/stats\r'))
    expect('the format nearest to it is k4v4', switched.type(b'/cache q4_0\r'))
    expect('The cache is kf32vf32 now', switched.type(b'/cache f32\r'))
    assert answer_of(plain.type(b'cd\r')) == answer_of(switched.type(b'cd\r'))
    assert plain.end() == 0 and switched.end() == 0


def keep_and_go_on():
    """/save, /clear and /load"""
    path = os.path.join(FOLDER, 'chat.talk')
    talk = Talk('-n', '6', '--cache', 'k8v8')
    talk.type(b'ab\r')
    said = talk.tokens()
    expect('Saved', talk.type(b'/save %s\r' % path.encode()))
    talk.type(b'/clear\r')
    assert talk.tokens() == 0
    talk.type(b'/cache k4v4\r')
    assert 'cache k8v8' in talk.type(b'/load %s\r' % path.encode()) and talk.tokens() == said
    talk.type(b'ab\r')
    assert talk.tokens() > said
    assert '/load' in talk.type(b'/load %s/none\r' % FOLDER.encode()) and talk.tokens() > said
    assert talk.end() == 0
    again = Talk('-n', '6', '--load', path)
    assert again.tokens() == said and again.end() == 0


def the_system():
    """/system and --system stand before the first message"""
    without, given, typed = Talk('-n', '4'), Talk('-n', '4', '--system', 'be ab'), Talk('-n', '4')
    expect('says: be ab', given.type(b'/system\r'))
    typed.type(b'ab\r')
    expect('begins anew', typed.type(b'/system be ab\r'))
    shown = [answer_of(talk.type(b'ab\r')) for talk in (without, given, typed)]
    assert without.tokens() < given.tokens() == typed.tokens() and shown[1] == shown[2]
    assert [talk.end() for talk in (without, given, typed)] == [0, 0, 0]


def ctrl_c():
    """Ctrl-C stops the answer, and not the program"""
    talk = Talk('--ctx', '100000000')
    talk.said = b''
    os.write(talk.file, b'ab\r')
    talk.wait(rb'(?s)ab\r\n.{60}')
    expect('interrupted', talk.type(b'\x03'))
    said = talk.tokens()
    assert said > 20
    expect('Ctrl-D or /bye', talk.type(b'half a line\x03'))
    assert talk.tokens() == said
    assert talk.end() == 0


def a_narrow_terminal():
    """progress fits a narrow terminal, and the next line replaces it"""
    talk = Talk('-n', '4', columns=16)
    assert talk.said.startswith(b'\r\x1b[Kloading the mod\r\x1b[K'), talk.said
    assert talk.end() == 0


def plain_lines():
    """plain lines on a dumb terminal, with a block between quotes"""
    talk = Talk('-n', '4', term='dumb')
    assert '\x1b' not in talk.type(b'/help\r')
    talk.type(b'"""/system one\r', rb'> $')
    talk.type(b'two"""\r')
    expect('says: one\r\ntwo', talk.type(b'/system\r'))
    expect('tokens/s', talk.type(b'ab\r'))
    expect('Ctrl-D or /bye', talk.type(b'\x03'))
    assert talk.end(b'\x04') == 0


def editing():
    """a line is edited, and comes back"""
    talk = Talk('-n', '4')
    talk.type(b'/system helXlo\x1b[D\x1b[D\x7f\x05 you\r')
    expect('says: hello you', talk.type(b'/system\r'))
    talk.type(b'/system h\xc3\xa9\x7fi\r')
    expect('says: hi', talk.type(b'/system\r'))
    talk.type(b'\x1b[A\x1b[A\x1b[A\x1b[A\r')
    expect('says: hello you', talk.type(b'/system\r'))
    assert talk.end() == 0


def paste():
    """what is pasted may have several lines"""
    talk = Talk('-n', '4')
    talk.type(b'\x1b[200~/system one\rtwo\nthree\x1b[201~', rb'three')
    talk.type(b' four\r')
    expect('says: one\r\ntwo\r\nthree four', talk.type(b'/system\r'))
    assert talk.end() == 0



def main():
    global EDITS
    signal.alarm(300)
    try:
        EDITS = bool(ctypes.CDLL('libedit.so.2'))
    except OSError:
        EDITS = False
    for function in (an_answer, larger_than_f16, one_token, commands, another_cache, keep_and_go_on, the_system, ctrl_c, a_narrow_terminal, plain_lines):
        test(function)
    for function in (editing, paste):
        if EDITS:
            test(function)
        else:
            print('skip chat: %s: libedit is not installed' % function.__doc__)
    sys.exit(bad > 0)


main()
