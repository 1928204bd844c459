#!/usr/bin/env python3
"""test/tool/pages.py PAGE...: looks at pages of the tool in Chromium, 1280 and 400 pixels wide, light and dark.

What must hold: a chart names every cache that the page's table has, no text covers another or a mark or is cut off, the colours of a
chart are explained in it, text can be read on its background, the page does not scroll sideways, and the first column of a table stays
where it is when the table scrolls. Without chromium that is skipped. And of tables of caches: from most bits to least, and numbers of a
column are written alike.
"""
import base64
import html
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile

# Runs in a page around the pages: each is in a frame of its own, as wide as a window.
LOOK = r"""
const rect = e => e.getBoundingClientRect();
const cover = (a, b, by) => Math.min(a.right, b.right) - Math.max(a.left, b.left) > by &&
    Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > by;
const luminance = c => c.map(x => x / 255).map(x => x <= 0.04045 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4)
    .reduce((sum, x, i) => sum + x * [0.2126, 0.7152, 0.0722][i], 0);
const numbers = text => text.match(/[0-9.]+/g).map(Number).slice(0, 3);

function behind(view, e) { // the colour of the paper that an element is on
    for (; e; e = e.parentElement) {
        const c = view.getComputedStyle(e).backgroundColor;
        if (c && !/, 0\)$|transparent/.test(c)) return numbers(c);
    }
    return [255, 255, 255];
}

function contrast(view, e, property) {
    const a = luminance(numbers(view.getComputedStyle(e)[property])), b = luminance(behind(view, e));
    return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
}

function chart(view, svg, title, tables, say) { // tables: the names of the caches of each
    const texts = [...svg.querySelectorAll('text')], boxes = texts.map(rect), frame = rect(svg);
    const points = [...svg.querySelectorAll('.mark:not(.key)')];
    const shown = new Set(texts.map(t => t.textContent));
    texts.forEach((t, i) => {
        const b = boxes[i];
        if (!b.width || b.left < frame.left - 1 || b.right > frame.right + 1 || b.top < frame.top - 1 || b.bottom > frame.bottom + 1)
            say('cut', title + ': "' + t.textContent + '"');
        if (contrast(view, t, 'fill') < 4.5) say('pale', title + ': "' + t.textContent + '"');
        for (let k = 0; k < i; k++)
            if (cover(b, boxes[k], 2)) say('covered', title + ': "' + t.textContent + '" and "' + texts[k].textContent + '"');
        for (const p of points)
            if (cover(b, rect(p), 3)) say('covered', title + ': "' + t.textContent + '" and ' + p.textContent);
    });
    if (shown.has('bits per value')) {
        const missing = tables.map(names => names.filter(name => !shown.has(name))).sort((a, b) => a.length - b.length);
        for (const name of missing[0] || ['a table']) say('missing', title + ': ' + name);
        if (/f16/.test(svg.textContent)) say('f16 in the chart', title);
    }
    const colours = new Set(), keys = new Set();
    for (const e of svg.querySelectorAll('[class]')) {
        const c = (e.getAttribute('class').match(/\bc\d\b/) || [])[0];
        if (c) (/\bkey\b|\bname\b/.test(e.getAttribute('class')) ? keys : colours).add(c);
    }
    if (colours.size > 1)
        for (const c of colours)
            if (!keys.has(c)) say('unexplained', title + ': colour ' + c);
}

function look(frame, say) {
    const view = frame.contentWindow, page = frame.contentDocument;
    const wide = page.documentElement.scrollWidth;
    if (wide > view.innerWidth) say('sideways', wide + ' pixels');
    const tables = [...page.querySelectorAll('table')].map(table => {
        const bits = [...table.querySelectorAll('thead th')].findIndex(h => /^bits/.test(h.textContent));
        const rows = [...table.querySelectorAll('tbody tr')].map(r => [...r.children].map(c => c.textContent));
        return rows.filter(r => bits > 0 && Number(r[bits]) < 16).map(r => r[0].replace(/[*+]$/, ''));
    }).filter(names => names.length);
    let charts = 0;
    for (const svg of page.querySelectorAll('svg'))
        if (rect(svg).width) charts++, chart(view, svg, svg.getAttribute('aria-label'), tables, say);
    for (const e of page.querySelectorAll('p, h1, h2, td, th, figcaption, .numbers b, .numbers span'))
        if (e.textContent.trim() && contrast(view, e, 'color') < 4.5) say('pale', e.textContent.slice(0, 40));
    for (const e of page.querySelectorAll('p, h1, h2, figcaption'))
        if (rect(e).right > view.innerWidth + 1) say('cut', e.textContent.slice(0, 40));
    for (const box of page.querySelectorAll('.scroll')) {
        box.scrollLeft = 1000;
        for (const e of box.querySelectorAll('th:first-child'))
            if (Math.abs(rect(e).left - rect(box).left) > 1) { say('scrolled away', e.textContent); break; }
        for (const r of box.querySelectorAll('tr'))
            if (contrast(view, r.children[0], 'color') < 4.5) say('pale', r.children[0].textContent);
    }
    return {charts, wide: view.innerWidth, dark: luminance(behind(view, page.body)) < 0.2};
}

const results = [];
let left = 0;
for (const [name, text] of Object.entries(PAGES))
    for (const width of [1280, 400]) {
        const frame = document.createElement('iframe'), bad = [];
        left++;
        frame.style.cssText = 'border: 0; height: 900px; width: ' + width + 'px';
        frame.srcdoc = text;
        frame.onload = () => {
            let seen = {};
            try { seen = look(frame, (what, where) => bad.push([what, where])); } catch (e) { bad.push(['broken', String(e.stack)]); }
            results.push({name, width, bad, ...seen});
            if (!--left) document.body.innerHTML = '<pre id="result">' + btoa(unescape(encodeURIComponent(JSON.stringify(results)))) + '</pre>';
        };
        document.body.append(frame);
    }
"""


def browse(pages, dark, folder):
    """What the browser saw: a list with an entry for each page and width."""
    harness = os.path.join(folder, 'look.html')
    texts = json.dumps(pages).replace('<', '\\u003c')
    with open(harness, 'w', encoding='utf-8') as f:
        f.write('<!DOCTYPE html><meta charset="utf-8"><body><script>const PAGES = ' + texts + ';' + LOOK + '</script>')
    command = ['chromium', '--headless', '--disable-gpu', '--user-data-dir=' + os.path.join(folder, 'profile'),
               '--blink-settings=preferredColorScheme=' + ('0' if dark else '1'), '--virtual-time-budget=20000', '--dump-dom',
               'file://' + harness]
    if os.getuid() == 0:
        command.insert(2, '--no-sandbox')  # root has no sandbox, and the pages are our own
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    found = re.search(r'id="result">([^<]*)<', done.stdout)
    if not found:
        raise RuntimeError('chromium printed no result: ' + done.stderr[-300:])
    return json.loads(base64.b64decode(html.unescape(found.group(1))))


def shape(cell):
    """How a number is written, whatever it is: 4.28 and 16.00 are N.DD, 1.12e-03 ± 1.8e-04 is N.DDe ± N.De."""
    cell = re.sub(r'e[-+]\d+', 'e', cell)
    cell = re.sub(r'\.(\d+)', lambda m: '.' + 'D' * len(m.group(1)), cell)
    return re.sub(r'\d+', 'N', cell)


def look_at_tables(name, page):
    """Those with a column of bits."""
    bad = []
    for table in re.findall(r'<table>.*?</table>', page, re.S):
        rows = [[html.unescape(c) for c in re.findall(r'<t[hd][^>]*>(.*?)</t[hd]>', row)] for row in re.findall(r'<tr>.*?</tr>', table)]
        column = [i for i, head in enumerate(rows[0]) if head.startswith('bits')]
        if not column:
            continue
        bits = [float(row[column[0]]) for row in rows[1:]]
        if bits != sorted(bits, reverse=True):
            bad.append(f'not sorted by bits: {bits}')
        for i, head in enumerate(rows[0]):
            ways = {shape(row[i]) for row in rows[1:]} if i and not head.startswith(('preset', 'time at')) else {''}
            if len(ways) != 1:
                bad.append(f'{head} is written in {len(ways)} ways: {sorted(ways)}')
        print(f"FAIL pages: {name}, table: {'; '.join(bad)}" if bad else f'ok pages: {name}, table: {len(bits)} rows')
    return bool(bad)


def main(paths):
    pages = {os.path.basename(p): open(p, encoding='utf-8').read() for p in paths}
    bad = sum(look_at_tables(name, page) for name, page in pages.items())
    if not shutil.which('chromium'):
        print('skip pages: there is no chromium to look at them with')
        return bad > 0
    for dark in (False, True):
        with tempfile.TemporaryDirectory() as folder:
            for r in browse(pages, dark, folder):
                name = f"pages: {r['name']}, {r['width']} pixels, {'dark' if dark else 'light'}"
                wrong = [f'{what}: {where}' for what, where in r['bad']]
                if r.get('wide') != r['width'] or r.get('dark') != dark or not r.get('charts'):
                    wrong.append(f'not as asked: {r}')
                bad += bool(wrong)
                print(f"FAIL {name}: {'; '.join(wrong)[:1500]}" if wrong else f"ok {name}: {r['charts']} charts")
    return bad > 0


if __name__ == '__main__':
    sys.exit(main(sys.argv[1:]))
