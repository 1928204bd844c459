#!/usr/bin/env python3
"""python/bind.py HEADER...: prints a Python module with what aura's headers declare, as ctypes sees it: enums, structs, functions.

The build of the package runs it, so the module always belongs to the library beside it; python/test/test_layout.py compares the
two with a C compiler. It reads our own headers, which say things in one way, and stops at what it does not know."""
import re
import sys

SCALARS = {
    'int': 'c_int', 'float': 'c_float', 'double': 'c_double', 'size_t': 'c_size_t', 'ptrdiff_t': 'c_ssize_t',
    'uint8_t': 'c_uint8', 'uint32_t': 'c_uint32', 'uint64_t': 'c_uint64',
}


class Headers:
    def __init__(self, text):
        text = re.sub(r'/\*.*?\*/', ' ', text, flags=re.S)
        text = re.sub(r'^[ \t]*#(?:\\\n|[^\n])*', '', text, flags=re.M)
        self.text = re.sub(r'\s+', ' ', text)
        self.enums, self.structs, self.functions = {}, {}, {}
        self.names = dict(SCALARS)  # a type: what ctypes calls it
        self.typedefs()
        self.constants()
        for found in re.finditer(r'typedef struct (\w+) \{([^}]*)\} (\w+);', self.text):
            self.structs[found.group(3)] = self.fields(found.group(2))
        for found in re.finditer(r'AURA_API ([^;()]*?)(\w+)\(([^;]*)\);', self.text):
            self.functions[found.group(2)] = (self.result(found.group(1)), self.arguments(found.group(3)))

    def typedefs(self):
        for found in re.finditer(r'typedef (\w+) (\w+);', self.text):
            self.names[found.group(2)] = self.names[found.group(1)]
        for found in re.finditer(r'typedef enum (\w+) ', self.text):
            self.names[found.group(1)] = 'c_int'
        for found in re.finditer(r'typedef struct (\w+) \{', self.text):
            self.names[found.group(1)] = found.group(1)

    def constants(self):
        for found in re.finditer(r'enum(?: \w+)? \{([^}]*)\}', self.text):
            for entry in filter(None, map(str.strip, found.group(1).split(','))):
                name, value = re.fullmatch(r'(\w+) = (\d+)', entry).groups()
                self.enums[name] = int(value)

    def type_of(self, words, pointer):
        """The ctypes type of `const X *`: an address, a string, or a number or struct itself."""
        base = ' '.join(word for word in words.split() if word not in ('const', 'struct'))
        if pointer:
            return 'c_char_p' if base == 'char' else 'c_void_p'
        if base not in self.names:
            sys.exit('bind.py: no type %s' % base)
        return self.names[base]

    def fields(self, body):
        """[(name, type)] of `const float *a, *b; uint32_t c, d; int (*e)(...);`"""
        out = []
        for declaration in filter(None, map(str.strip, body.split(';'))):
            callback = re.fullmatch(r'[\w *]+\(\*(\w+)\)\(.*\)', declaration)
            if callback:
                out.append((callback.group(1), 'c_void_p'))
                continue
            words, names = re.fullmatch(r'((?:const |struct )*\w+) (.*)', declaration).groups()
            for name in names.split(','):
                out.append((name.strip(' *'), self.type_of(words, '*' in name)))
        return out

    def result(self, words):
        words = words.strip()
        return 'None' if words == 'void' else self.type_of(words.rstrip('* '), words.endswith('*'))

    def arguments(self, text):
        out = []
        for argument in [] if text.strip() == 'void' else re.split(r',(?![^(]*\))', text):
            words, stars = re.fullmatch(r'\s*((?:const |struct )*\w+) ?(\**)[ ]*\w+(?:\[\d*\])?\s*', argument).groups()
            array = '[' in argument
            out.append('c_void_p' if array else self.type_of(words, bool(stars)))
        return out


def main():
    text = ''.join(open(path, encoding='utf-8').read() for path in sys.argv[1:])
    headers = Headers(text)
    if len(headers.functions) != len(re.findall(r'^AURA_API', text, flags=re.M)):
        sys.exit('bind.py: not every function was read')
    print('"""Made by python/bind.py from the headers of aura when the package was built."""')
    print('from ctypes import (Structure, c_char_p, c_double, c_float, c_int, c_size_t, c_ssize_t, c_uint8, c_uint32, c_uint64,\n'
          '                    c_void_p)  # noqa: F401\n')
    print("VERSION = '%s'" % re.search(r'define AURA_VERSION_STRING "(.*)"', text).group(1))
    for name, value in headers.enums.items():
        print('%s = %d' % (name, value))
    print('\nSTRUCTS = {}\n')
    for name, fields in headers.structs.items():
        print('\nclass %s(Structure):\n    _fields_ = [' % name)
        print(''.join("        ('%s', %s),\n" % field for field in fields) + '    ]\n')
        print("\nSTRUCTS['%s'] = %s" % (name, name))
    for table, of_cuda in (('FUNCTIONS', False), ('CUDA_FUNCTIONS', True)):
        print('\n%s = {  # name: (result, arguments)' % table)
        for name, (result, arguments) in headers.functions.items():
            if name.startswith('aura_cuda_') == of_cuda:
                print("    '%s': (%s, [%s])," % (name, result, ', '.join(arguments)))
        print('}')


if __name__ == '__main__':
    main()
