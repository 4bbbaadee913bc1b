// The interactive figure of html_page.py: builds its DOM beside the data that it is the next script of.
(() => {
    'use strict';
    const root = document.currentScript.parentElement;
    const id = document.querySelectorAll('.ktx-attention').length; // of the figure in its page
    const data = JSON.parse(root.querySelector('script[type="application/json"]').textContent);
    // Of the heads, in either theme: chosen so that the color-blind distinguish them (a test computes it). They
    // repeat after twelve heads, so a head's number is always beside its color.
    const LIGHT = ['#0076c4', '#ff3b14', '#27b13b', '#891489', '#893b00', '#ff3b9d',
        '#27623b', '#eb7676', '#273bc4', '#ff3bff', '#623b62', '#8900ff'];
    const DARK = ['#62b1ff', '#ff9d27', '#9dff76', '#d81476', '#b1764e', '#d89dc4',
        '#9dc489', '#eb0000', '#7662d8', '#ffeb00', '#27ebff', '#b100ff'];
    const WIDEST = 256; // tokens that are shown as columns
    const LISTED = 8; // tokens in the table
    const VALUES = Float32Array.from({ length: 256 }, (_, byte) => (byte / 255) ** 2);
    const scheme = matchMedia('(prefers-color-scheme: dark)');

    const state = { part: 0, layer: 0, heads: new Set(), preview: null, view: 'columns', selected: null, pinned: false };
    let colors = LIGHT;
    let lists = {}; // the li elements by side: "query", "key"
    let canvas = null;

    const part = () => data.parts[state.part];
    const size = (side) => (side === 'query' ? part().queries : part().keys).length;
    const opposite = (side) => (side === 'query' ? 'key' : 'query');
    const percent = (value) => (value > 0 && value < 0.005 ? '<1 %' : `${Math.round(100 * value)} %`);
    const shown = () => (state.preview === null ? [...state.heads].sort((a, b) => a - b) : [state.preview]);

    function element(name, options = {}, ...children) {
        const { dataset = {}, style = {}, attributes = {}, ...properties } = options;
        const made = Object.assign(document.createElement(name), properties);
        Object.assign(made.dataset, dataset);
        Object.assign(made.style, style);
        for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
        made.append(...children);
        return made;
    }

    function visible(token) {
        if (token.trim()) return token.replace(/\n/g, '\u21b5').replace(/\t/g, '\u21e5');
        return token.replace(/\n/g, '\u21b5').replace(/\t/g, '\u21e5').replace(/\s/g, '\u2423') || '\u2205';
    }

    function channels(head) {
        const number = parseInt(colors[head % colors.length].slice(1), 16);
        return [number >> 16, (number >> 8) & 255, number & 255];
    }

    function color(head, alpha) {
        return `rgba(${channels(head).join(', ')}, ${alpha.toFixed(3)})`;
    }

    // Black or white, whichever has more contrast with the color of a head.
    function ink(head) {
        const [red, green, blue] = channels(head).map((channel) => (channel / 255) ** 2.2);
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue > 0.18 ? '#000000' : '#ffffff';
    }

    async function decompress(text) {
        const bytes = Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
        const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream('deflate'));
        return new Uint8Array(await new Response(stream).arrayBuffer());
    }

    // The bytes of one layer and head: queries x keys.
    function map(layer, head) {
        const { bytes, heads, queries, keys } = part();
        const length = queries.length * keys.length;
        const start = (layer * heads + head) * length;
        return bytes.subarray(start, start + length);
    }

    // For each token of the opposite side, the weights of the heads that are shown.
    function weights(side, index) {
        const count = size(opposite(side));
        const columns = part().keys.length;
        const result = Array.from({ length: count }, () => []);
        for (const head of shown()) {
            const bytes = map(state.layer, head);
            for (let other = 0; other < count; other += 1) {
                const place = side === 'query' ? index * columns + other : other * columns + index;
                result[other].push(VALUES[bytes[place]]);
            }
        }
        return result;
    }

    // Opacity of a weight: small ones stay visible.
    const opacity = (value) => value ** 0.7;
    const mean = (values) => (values.length ? values.reduce((a, b) => a + b, 0) / values.length : 0);

    // ----- controls

    function radios(title, kind, labels, values, chosen, change) {
        const name = `ktx-${kind}-${id}`;
        const choices = labels.map((label, index) => {
            const input = element('input', { type: 'radio', name, checked: values[index] === chosen });
            input.dataset.value = values[index];
            input.addEventListener('change', () => change(values[index]));
            return element('label', {}, input, element('span', { textContent: label }));
        });
        return element('fieldset', { className: kind }, element('legend', { textContent: title }), ...choices);
    }

    function headChoice(head) {
        const input = element('input', { type: 'checkbox', checked: state.heads.has(head), dataset: { head } });
        const label = element('label', { title: `head ${head}` }, input, element('span', { textContent: String(head) }));
        input.addEventListener('change', () => {
            if (input.checked) state.heads.add(head); else state.heads.delete(head);
            state.preview = null;
            draw();
        });
        label.addEventListener('pointerenter', (event) => {
            if (event.pointerType === 'mouse' && state.heads.has(head)) { state.preview = head; drawTokens(); }
        });
        label.addEventListener('pointerleave', () => { state.preview = null; drawTokens(); });
        return label;
    }

    function headButton(text, heads) {
        const button = element('button', { type: 'button', textContent: text });
        button.addEventListener('click', () => { state.heads = new Set(heads); draw(); });
        return button;
    }

    function controls() {
        const { heads, layers } = part();
        const bar = element('div', { className: 'controls' });
        if (data.parts.length > 1) {
            const names = data.parts.map((one) => one.name);
            bar.append(radios('Part', 'parts', names, [...names.keys()], state.part, (value) => {
                const previous = part();
                state.part = value;
                if (part().heads !== previous.heads) state.heads = new Set(Array(part().heads).keys());
                state.layer = Math.min(state.layer, part().layers.length - 1);
                state.selected = null;
                state.pinned = false;
                build('parts');
            }));
        }
        bar.append(radios('Layer', 'layers', layers.map(String), [...layers.keys()], state.layer, (value) => {
            state.layer = value;
            draw();
        }));
        const numbers = [...Array(heads).keys()];
        bar.append(element(
            'fieldset', { className: 'heads' }, element('legend', { textContent: 'Heads' }),
            ...numbers.map(headChoice), headButton('all', numbers), headButton('none', []),
        ));
        if (Math.max(size('query'), size('key')) <= WIDEST) {
            bar.append(radios('View', 'views', ['columns', 'text'], ['columns', 'text'], state.view, (value) => {
                state.view = value;
                build('views');
            }));
        } else {
            state.view = 'text';
        }
        return bar;
    }

    // ----- tokens

    function list(side, role) {
        const tokens = side === 'query' ? part().queries : part().keys;
        const items = tokens.map((token, index) => element(
            'li', { tabIndex: index ? -1 : 0, title: `token ${index}`, dataset: { side, index }, attributes: { role: 'option' } },
            element('span', { className: 'token', textContent: visible(token) }),
            element('span', { className: 'strip' }),
        ));
        lists[side] = items;
        const made = element('ul', { attributes: { role: 'listbox', 'aria-label': role } }, ...items);
        const indexOf = (event) => {
            const item = event.target.closest('li');
            return item ? Number(item.dataset.index) : null;
        };
        made.addEventListener('pointerover', (event) => select(side, indexOf(event), false));
        made.addEventListener('focusin', (event) => select(side, indexOf(event), false));
        made.addEventListener('pointerleave', () => select(null, null, false));
        made.addEventListener('click', (event) => pin(side, indexOf(event)));
        made.addEventListener('keydown', (event) => move(event, items, indexOf(event)));
        return made;
    }

    function move(event, items, index) {
        const steps = { ArrowDown: 1, ArrowRight: 1, ArrowUp: -1, ArrowLeft: -1, Home: -items.length, End: items.length };
        if (event.key in steps) {
            const next = Math.min(Math.max(index + steps[event.key], 0), items.length - 1);
            items[index].tabIndex = -1;
            items[next].tabIndex = 0;
            items[next].focus();
        } else if (event.key === 'Enter' || event.key === ' ') {
            pin(items[index].dataset.side, index);
        } else if (event.key === 'Escape') {
            state.pinned = false;
            select(null, null, false);
        } else {
            return;
        }
        event.preventDefault();
    }

    function pin(side, index) {
        if (index === null) return;
        const { selected, pinned } = state;
        const same = pinned && selected && selected.side === side && selected.index === index;
        state.pinned = false;
        select(side, index);
        state.pinned = !same;
        drawReadout();
    }

    function select(side, index) {
        if (state.pinned || (side !== null && index === null)) return;
        state.selected = side === null ? null : { side, index };
        drawTokens();
    }

    function tokens() {
        lists = {};
        canvas = null;
        const [from, to] = [part().query_name, part().key_name];
        if (state.view === 'columns') {
            canvas = element('canvas', { attributes: { 'aria-hidden': 'true' } });
            return element(
                'div', { className: 'columns' },
                element('div', { className: 'queries' }, element('h3', { textContent: from }), list('query', from)),
                canvas,
                element('div', { className: 'keys' }, element('h3', { textContent: to }), list('key', to)),
            );
        }
        const made = element('div', { className: 'text' });
        if (part().same) {
            made.append(list('query', 'tokens'));
            lists.key = lists.query;
        } else {
            made.append(element('h3', { textContent: from }), list('query', from));
            made.append(element('h3', { textContent: to }), list('key', to));
        }
        return made;
    }

    // ----- drawing

    function gradient(values) {
        const heads = shown();
        const step = 100 / heads.length;
        const stops = heads.map((head, place) => (
            `${color(head, opacity(values[place]))} ${(place * step).toFixed(2)}% ${((place + 1) * step).toFixed(2)}%`
        ));
        return `linear-gradient(to right, ${stops.join(', ')})`;
    }

    function drawTokens() {
        const { selected } = state;
        const heads = shown();
        for (const item of new Set([...lists.query, ...lists.key])) {
            item.classList.remove('selected');
            item.setAttribute('aria-selected', 'false');
            item.firstChild.style.background = '';
            item.lastChild.style.background = '';
            if (state.view === 'columns') item.lastChild.style.width = `${Math.min(11 * Math.max(heads.length, 1), 140)}px`;
        }
        if (selected !== null) {
            const item = lists[selected.side][selected.index];
            item.classList.add('selected');
            item.setAttribute('aria-selected', 'true');
            for (const [index, values] of weights(selected.side, selected.index).entries()) {
                const other = lists[opposite(selected.side)][index];
                other.firstChild.style.background = `rgba(var(--accent), ${(0.75 * Math.sqrt(mean(values))).toFixed(3)})`;
                if (heads.length) other.lastChild.style.background = gradient(values);
            }
        }
        drawLines();
        drawReadout();
    }

    function drawLines() {
        if (canvas === null) return;
        const height = 24 * Math.max(size('query'), size('key'));
        const ratio = Math.min(devicePixelRatio || 1, 16000 / height); // browsers limit the height
        canvas.style.height = `${height}px`;
        const width = canvas.clientWidth;
        canvas.width = width * ratio;
        canvas.height = height * ratio;
        const context = canvas.getContext('2d');
        context.scale(ratio, ratio);
        const { selected } = state;
        const columns = part().keys.length;
        const range = (side) => (
            selected !== null && selected.side === side ? [selected.index, selected.index + 1] : [0, size(side)]
        );
        const [queries, keys] = [range('query'), range('key')];
        context.lineWidth = selected === null ? 1.2 : 2;
        const least = selected === null ? 0.05 : 0.02; // weights below it have no line
        const heads = shown();
        for (const [place, head] of heads.entries()) {
            const bytes = map(state.layer, head);
            const shift = selected === null ? 0 : (place - (heads.length - 1) / 2) * Math.min(1.2, 12 / heads.length);
            for (let query = queries[0]; query < queries[1]; query += 1) {
                for (let key = keys[0]; key < keys[1]; key += 1) {
                    const value = VALUES[bytes[query * columns + key]];
                    if (value < least) continue;
                    context.strokeStyle = color(head, selected === null ? value : opacity(value));
                    context.beginPath();
                    context.moveTo(0, 24 * query + 12 + shift);
                    context.lineTo(width, 24 * key + 12 + shift);
                    context.stroke();
                }
            }
        }
    }

    function drawReadout() {
        const box = root.querySelector('.readout');
        const { selected, pinned } = state;
        const heads = shown();
        if (selected === null || !heads.length) {
            const text = heads.length ? 'Hover over or focus a token to see its attention.' : 'Select a head.';
            box.replaceChildren(element('h3', { textContent: 'Attention of a token' }), element('p', { textContent: text }));
            return;
        }
        const { side, index } = selected;
        const from = side === 'query' ? part().queries : part().keys;
        const to = side === 'query' ? part().keys : part().queries;
        const rows = weights(side, index).map((values, other) => ({ other, values, value: mean(values) }));
        rows.sort((a, b) => b.value - a.value || a.other - b.other);
        const verb = side === 'query' ? 'attends to' : 'receives attention from';
        const body = rows.slice(0, LISTED).map(({ other, values, value }) => {
            const best = values.indexOf(Math.max(...values));
            const swatch = element('i', { style: { background: color(heads[best], 1) } });
            return element(
                'tr', {}, element('td', { textContent: visible(to[other]), title: `token ${other}` }),
                element('td', { textContent: percent(value) }),
                element('td', {}, swatch, `${heads[best]}: ${percent(values[best])}`),
            );
        });
        const head = element(
            'tr', {}, element('th', { textContent: 'token' }),
            element('th', { textContent: heads.length === 1 ? `head ${heads[0]}` : `mean of ${heads.length} heads` }),
            element('th', { textContent: 'largest head' }),
        );
        box.replaceChildren(
            element('h3', {
                textContent: `Layer ${part().layers[state.layer]}: \u201c${visible(from[index])}\u201d (token ${index}) ${verb}`,
            }),
            element('table', {}, element('thead', {}, head), element('tbody', {}, ...body)),
            element('p', { textContent: pinned ? 'Pinned: click the token again or press Escape to release it.' : '' }),
        );
    }

    // ----- all layers and heads

    function overview() {
        const { heads, layers } = part();
        const cell = Math.max(14, Math.min(40, Math.floor(325 / heads) - 3));
        const grid = element('div', {
            className: 'maps', attributes: { role: 'group', 'aria-label': 'Layers and heads' },
            style: { gridTemplateColumns: `22px repeat(${heads}, ${cell}px)` },
        });
        grid.append(element('span'));
        for (let head = 0; head < heads; head += 1) grid.append(element('span', { textContent: String(head) }));
        const buttons = [];
        for (const [layer, name] of layers.entries()) {
            grid.append(element('span', { textContent: String(name) }));
            for (let head = 0; head < heads; head += 1) {
                const label = `layer ${name}, head ${head}`;
                const button = element('button', {
                    type: 'button', title: label, tabIndex: buttons.length ? -1 : 0, dataset: { layer, head },
                    style: { width: `${cell}px`, height: `${cell}px` }, attributes: { 'aria-label': label },
                }, element('canvas'));
                button.addEventListener('click', () => {
                    const same = state.layer === layer && state.heads.size === 1 && state.heads.has(head);
                    state.layer = layer;
                    state.heads = new Set(same ? Array(heads).keys() : [head]);
                    draw();
                });
                buttons.push(button);
                grid.append(button);
            }
        }
        grid.addEventListener('keydown', (event) => {
            const place = buttons.indexOf(event.target);
            const steps = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: heads, ArrowUp: -heads };
            const next = buttons[place + steps[event.key]];
            if (place < 0 || next === undefined) return;
            buttons[place].tabIndex = -1;
            next.tabIndex = 0;
            next.focus();
            event.preventDefault();
        });
        return element(
            'div', { className: 'overview' },
            element('h3', { textContent: 'All layers (rows) and heads (columns)' }), grid,
        );
    }

    // A small map: the largest weight below each pixel, rows are queries.
    function drawMap(button) {
        const [layer, head] = [Number(button.dataset.layer), Number(button.dataset.head)];
        const [rows, columns] = [size('query'), size('key')];
        const bytes = map(layer, head);
        const target = button.firstChild;
        const pixels = Math.round(button.clientWidth * (devicePixelRatio || 1));
        target.width = Math.min(columns, pixels);
        target.height = Math.min(rows, pixels);
        const context = target.getContext('2d');
        const image = context.createImageData(target.width, target.height);
        const rgb = channels(head);
        for (let row = 0; row < rows; row += 1) {
            const top = Math.floor((row * target.height) / rows) * target.width;
            for (let column = 0; column < columns; column += 1) {
                const place = 4 * (top + Math.floor((column * target.width) / columns));
                const byte = bytes[row * columns + column]; // the root of the weight: small ones are visible
                if (byte > image.data[place + 3]) image.data[place + 3] = byte;
            }
        }
        for (let place = 0; place < image.data.length; place += 4) image.data.set(rgb, place);
        context.putImageData(image, 0, 0);
        target.style.imageRendering = rows < pixels ? 'pixelated' : 'auto';
    }

    // ----- all

    function draw() {
        for (const input of root.querySelectorAll('.layers input')) {
            input.checked = Number(input.dataset.value) === state.layer;
        }
        for (const input of root.querySelectorAll('.heads input')) {
            const head = Number(input.dataset.head);
            input.checked = state.heads.has(head);
            const chip = input.nextElementSibling;
            chip.style.borderColor = color(head, 1);
            chip.style.background = input.checked ? color(head, 1) : 'transparent';
            chip.style.color = input.checked ? ink(head) : '';
        }
        for (const button of root.querySelectorAll('.maps button')) {
            const [layer, head] = [Number(button.dataset.layer), Number(button.dataset.head)];
            button.classList.toggle('shown', layer === state.layer && state.heads.has(head));
        }
        drawTokens();
    }

    // `focused` is the kind of the radio buttons that had the focus before.
    function build(focused) {
        colors = scheme.matches ? DARK : LIGHT;
        root.replaceChildren(...[...root.children].filter((child) => ['STYLE', 'SCRIPT'].includes(child.tagName)));
        if (data.title) root.append(element('h2', { textContent: data.title }));
        root.append(element('p', {
            className: 'help',
            textContent: 'Hover over a token, or select one with the arrow keys; a click or Enter pins it. '
                + 'Click a small map to show only that head of the layer.',
        }));
        root.append(controls());
        root.append(element(
            'div', { className: 'body' }, tokens(),
            element(
                'div', { className: 'side' },
                element('div', { className: 'readout', attributes: { 'aria-live': 'polite' } }), overview(),
            ),
        ));
        for (const button of root.querySelectorAll('.maps button')) drawMap(button);
        draw();
        if (focused) root.querySelector(`.${focused} input:checked`).focus();
    }

    async function start() {
        for (const one of data.parts) one.bytes = await decompress(one.data);
        state.heads = new Set(Array(part().heads).keys());
        if (Math.max(size('query'), size('key')) > 64) state.view = 'text';
        build();
        scheme.addEventListener('change', () => build());
        addEventListener('resize', drawLines);
        root.dataset.ready = 'true';
    }

    start();
})();
