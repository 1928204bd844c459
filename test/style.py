#!/usr/bin/env python3
"""test/style.py [RULE...]: the habits of this tree that a compiler does not see.

A rule is a function below: it gets a file and yields (line, what is wrong). First every rule must find what is wrong with its
own sample, so that a rule that sees nothing is a failure too. Then it reads the tree. Prints "ok NAME" or
"FAIL NAME: path:line: why" as test/run.sh wants it. Exceptions are here, by name, each with its reason; one that nothing
needs any more is a failure.
"""
import os
import re
import subprocess
import sys

TOP = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
CODE = ('.c', '.h', '.cu', '.cuh', '.cpp')
WIDTH = 132
LONGEST_FUNCTION = 60

# ---- exceptions ----------------------------------------------------------------------------------------------------

# 'path:function': why it is longer than 60 lines.
LONG_FUNCTIONS = {}

# 'path': why it may name dims or kinds itself.
OWN_LISTS = {
    'include/aura.h': 'the numbers of kinds are public',
    'test/golden.c': 'what is added to src/variants.h must not move a line of the golden file',
    'test/rules.c': 'an independent oracle',
    'test/base/format_names.c': 'the names of kinds by themselves',
}

# Headers of others, and files that a text tells the reader to make.
NOT_OURS = set('math.h stdio.h stdint.h stdlib.h string.h threads.h stdatomic.h immintrin.h arm_neon.h fenv.h cuda_runtime.h'
               ' cuda_fp16.h ggml.h llama.h pthread.h peers.md bmi2.c'.split())


# ---- what rules are made of ----------------------------------------------------------------------------------------

class Tree:
    """The files of the tree, and what is defined in them."""

    def __init__(self, texts):
        self.texts = texts
        self.names = {}  # the last part of a path -> paths
        for path in texts:
            self.names.setdefault(os.path.basename(path), []).append(path)
        self.words = set()  # every aura_ word of the code
        for path, text in texts.items():
            if path.endswith(CODE):
                self.words.update(re.findall(r'\baura_\w+', code_of(text)))

    def has(self, name, beside):
        """Whether a path, or its end, is one of a file here."""
        name = os.path.normpath(name)
        if name.startswith('..'):
            name = os.path.normpath(os.path.join(os.path.dirname(beside), name))
        return any(path == name or path.endswith('/' + name) for path in self.names.get(os.path.basename(name), []))


def blank(text):
    return re.sub(r'[^\n]', ' ', text)


def code_of(text):
    """The text with its comments made blank; lines stay where they are."""
    return re.sub(r'"(?:\\.|[^"\\\n])*"|/\*.*?\*/|//[^\n]*', lambda m: m.group() if m.group()[0] == '"' else blank(m.group()),
                  text, flags=re.S)


def comments_of(text):
    """The other way: all but the comments made blank."""
    code = code_of(text)
    return ''.join(t if t == '\n' or (c == ' ' and t != ' ') else ' ' for c, t in zip(code, text))


def prose_of(path, text):
    """What a reader reads: comments of code, all of a document."""
    if path.endswith(CODE):
        return comments_of(text)
    if path.endswith(('.sh', '.py', 'Makefile', 'CMakeLists.txt')):
        return '\n'.join(re.sub(r'^.*?(?:(?:^|\s)#(?=\s)|$)', '', line) for line in text.split('\n'))
    return text if path.endswith('.md') else ''


def line_of(text, at):
    return text.count('\n', 0, at) + 1


# ---- the rules -----------------------------------------------------------------------------------------------------

def width(path, text, tree):
    """Lines of code fit the window."""
    if path.endswith(CODE):
        for n, line in enumerate(text.split('\n'), 1):
            if len(line) > WIDTH:
                yield n, '%d columns, more than %d' % (len(line), WIDTH)


def functions(path, text, tree):
    """A function is read in one go."""
    if not path.endswith(CODE):
        return
    lines, begin = text.split('\n'), None
    for n, line in enumerate(lines, 1):
        if line == '{':
            begin = n
        elif line.startswith('}') and begin:
            length, head = n - begin + 1, begin - 2
            begin = None
            if length <= LONGEST_FUNCTION:
                continue
            while head > 0 and lines[head].startswith(' '):
                head -= 1
            name = (re.findall(r'(\w+)\s*\(', lines[head]) or ['?'])[0]
            if not excepted(LONG_FUNCTIONS, path + ':' + name):
                yield head + 1, '%s has %d lines, more than %d' % (name, length, LONGEST_FUNCTION)


MAY_INCLUDE = {  # a room: the rooms whose headers it may include beside its own
    'include': [],
    'src': ['include', 'src/base'],  # and expands what src/cpu implements
    'src/base': ['include', 'src'],
    'src/cpu': ['include', 'src', 'src/base'],
    'src/cache': ['include', 'src', 'src/base'],
    'src/rows': ['include', 'src', 'src/base', 'src/cache'],
    'src/file': ['include', 'src', 'src/base', 'src/cache'],
    'src/cuda': ['include', 'src', 'src/base', 'src/cache', 'src/rows'],
    'src/mpi': ['include', 'src', 'src/base', 'src/cache', 'src/file'],
    'model': ['include', 'src/base'],
    'examples': ['include'],
}


def rooms(path, text, tree):
    """A line of code knows what it may touch."""
    room = os.path.dirname(path)
    if room.startswith('src/') and room not in MAY_INCLUDE:
        yield 1, 'room %s has no rule' % room
    if room not in MAY_INCLUDE or not path.endswith(CODE):
        return
    for found in re.finditer(r'^\s*#\s*include\s*"([^"]+)"', text, re.M):
        other = os.path.dirname(os.path.normpath(os.path.join(room, found.group(1))))
        if other != room and other not in MAY_INCLUDE[room]:
            yield line_of(text, found.start()), '%s may not include %s' % (room, found.group(1))


def names(path, text, tree):
    """A file or a function that a comment or a document names is there."""
    if path in ('CHANGES.md', 'test/style.py'):  # history; samples
        return
    prose = prose_of(path, text)
    for found in re.finditer(r'(?<![\w./<>*$%{}~-])[A-Za-z0-9_][\w./-]*\.(?:tmpl\.h|cuh|cu|c|h|sh|py|md)\b(?![\w.(*-]*[*<])', prose):
        name = found.group()
        if re.search(r'(?:^|[/_])(?:NAME|ISA)\.', name):  # stands for any
            continue
        if os.path.basename(name) not in NOT_OURS and not tree.has(name, path):
            yield line_of(prose, found.start()), 'there is no %s' % name
    for found in re.finditer(r'`((?:[A-Za-z][\w.-]*/)+)`', prose):  # a folder; those of a build come later
        folder = found.group(1)
        if not folder.startswith(('build/', 'models/')) and not any(('/' + p).find('/' + folder) >= 0 for p in tree.texts):
            yield line_of(prose, found.start()), 'there is no folder %s' % folder
    for found in re.finditer(r'\b(aura_\w+)\(', prose):
        if found.group(1) not in tree.words:
            yield line_of(prose, found.start()), 'there is no %s()' % found.group(1)


DIMS = ' 80 96 112 '  # dims that stand side by side nowhere else
BITS = ' 2 3 4 5 6 8 '


def lists(path, text, tree):
    """Dims and kinds are listed in src/variants.h alone."""
    if not path.endswith(CODE):
        return
    code = code_of(text)
    for found in re.finditer(r'\b\d+(?:,?\s+(?:and |or )?\d+){2,}', code):
        numbers = ' %s ' % ' '.join(re.findall(r'\d+', found.group()))
        if (DIMS in numbers or BITS in numbers) and not excepted(OWN_LISTS, path):
            yield line_of(code, found.start()), 'a list of its own: %s' % ' '.join(found.group().split())
    for found in re.finditer(r'\{[^;]*\}', code):
        kinds = re.findall(r'\bAURA_KIND_(?:B\d|B?F\d+)\b', found.group())
        if len(set(kinds)) == len(kinds) >= 9 and not excepted(OWN_LISTS, path):
            yield line_of(code, found.start()), 'a list of its own of all kinds'


def leftovers(path, text, tree):
    """Nothing is parked."""
    if path.endswith(CODE):
        for found in re.finditer(r'^\s*#\s*if\s+[01]\b', text, re.M):
            yield line_of(text, found.start()), found.group().strip()
    if path.endswith(CODE + ('.sh', '.md', 'Makefile', 'CMakeLists.txt')):
        for found in re.finditer(r'\b(?:TO' r'DO|FIX' r'ME|X' r'XX)\b', text):
            yield line_of(text, found.start()), found.group()


def says_what_fails(path, text, tree):
    """The comment above a public function says what fails, or that nothing can."""
    if not path.startswith('include/'):
        return
    comment = ''  # the last one, until an empty line
    for n, line in enumerate(text.split('\n'), 1):
        if not line.strip():
            comment = ''
        elif line.startswith('/*'):
            comment = line
        elif line.startswith(' *'):
            comment += line
        elif line.startswith('AURA_API') and not re.search(r'\b(?:Fails?|Never fails)\b', comment):
            yield n, '%s does not say what fails' % (re.findall(r'(\w+)\(', line) or ['?'])[0]


RULES = {  # the rule: a path and a text that it must refuse
    width: ('src/a.c', 'int ' + 'x' * WIDTH + ';\n'),
    functions: ('src/a.c', 'int a(void)\n{\n' + '    a();\n' * 60 + '}\n'),
    rooms: ('model/a.c', '#include "../src/cache/cache.h"\n'),
    names: ('src/a.c', '/* See nowhere.c and aura_nothing(). */\n'),
    lists: ('src/a.c', 'static const int dims[] = {64, 80, 96, 112, 128};\n'),
    leftovers: ('src/a.c', '#if 0\n#endif\n'),
    says_what_fails: ('include/a.h', '/* Does it. */\nAURA_API aura_status aura_do(int a);\n'),
}
MORE_SAMPLES = [
    (names, 'doc/a.md', 'Look into `src/nowhere.h`.\n'),
    (names, 'doc/a.md', 'Look into `src/nowhere/`.\n'),
    (names, 'src/a.c', 'int a; // aura_nothing() does it\n'),
    (names, 'test/a.sh', 'echo # as in nowhere.sh\n'),
    (lists, 'tool/a.c', 'puts("64, 80, 96, 112 or 128");\n'),
    (lists, 'test/a.c', 'int bits[] = {2, 3, 4, 5, 6, 8};\n'),
    (rooms, 'src/cpu/a.c', '#include "../cache/cache.h"\n'),
    (rooms, 'src/cache/a.c', '#include "../rows/group.h"\n'),
    (leftovers, 'test/a.sh', 'echo # TO' 'DO\n'),
    (says_what_fails, 'include/a.h', 'AURA_API size_t aura_do(int a);\n'),
    (says_what_fails, 'include/a.h', '/* Never fails. */\n\nAURA_API size_t aura_do(int a);\n'),
]

# ---- running them --------------------------------------------------------------------------------------------------

used = set()


def excepted(exceptions, key):
    if key in exceptions:
        used.add(key)
    return key in exceptions


def tree_files():
    """Tracked files and those to be, without what git ignores; in a copy without git, all but what is built."""
    try:
        listed = subprocess.run(['git', 'ls-files', '-co', '--exclude-standard'], cwd=TOP, capture_output=True, text=True)
        paths = [path for path in listed.stdout.split('\n') if path]
    except OSError:  # there is no git
        paths = []
    if not paths:
        for folder, below, names_here in os.walk(TOP):
            below[:] = [name for name in below if name not in ('.git', 'build', 'models')]
            paths += [os.path.relpath(os.path.join(folder, name), TOP) for name in names_here]
    return sorted(path for path in paths if os.path.isfile(os.path.join(TOP, path)))


def read_tree():
    texts = {}
    for path in tree_files():
        try:
            with open(os.path.join(TOP, path), encoding='utf-8') as file:
                texts[path] = file.read()
        except UnicodeDecodeError:
            texts[path] = ''
    return texts


def main():
    wanted = sys.argv[1:]
    texts, bad = read_tree(), 0
    if len(texts) < 100:
        sys.exit('FAIL style: there are only %d files' % len(texts))
    tree = Tree(texts)
    for rule, sample in RULES.items():
        if wanted and rule.__name__ not in wanted:
            continue
        wrong = ['a sample passed that must not: %s' % text.strip()
                 for (path, text) in [sample] + [more[1:] for more in MORE_SAMPLES if more[0] == rule]
                 if not list(rule(path, text, tree))]
        for path in texts:
            wrong += ['%s:%d: %s' % (path, line, what) for line, what in rule(path, texts[path], tree)]
        for what in wrong:
            print('FAIL style %s: %s' % (rule.__name__, what))
        if not wrong:
            print('ok style %s' % rule.__name__)
        bad += len(wrong)
    for key in sorted((set(LONG_FUNCTIONS) | set(OWN_LISTS)) - used) if not wanted else []:
        print('FAIL style exceptions: nothing needs the one of %s' % key)
        bad += 1
    sys.exit(bad > 0)


if __name__ == '__main__':
    main()
