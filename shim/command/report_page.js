/*
 * Draws the page of gpushim report from the data that the page carries:
 *   report   the rows of gpushim report --json
 *   moments  times at which a block or a piece came or went, ns
 *   blocks   [device, address, size, from, to, stream, how it was allocated, stack]: from and to are
 *            places in moments, to -1 for never; stack a place in stacks, -1 for none
 *   pieces   [device, address, size, from, to]
 *   figures  [time, device, live, cached, retired, limbo], each from that time on
 */
'use strict';
(() => {
  const data = JSON.parse(document.getElementById('data').textContent);
  const report = data.report;
  const WIDTH = 1080, HEIGHT = 250, LEFT = 66, BOTTOM = 22, COLUMNS = 1000, ROWS = 24, LISTED = 15;
  const KINDS = ['live', 'cached', 'retired', 'limbo'];
  const element = id => document.getElementById(id);
  let device = report.devices.length ? report.devices[0].device : 0;
  const FLAME_ROW = 18, FLAME_ROWS = 40, LETTER = 6.2;
  let blocks = [], pieces = [], figures = [], changes = [], peak = 0, drawn = [], chosen = [];

  /* ---- Words ---- */

  function bytes(number) {
    const units = ['bytes', 'KiB', 'MiB', 'GiB', 'TiB'];
    let unit = 0;
    for (; number >= 999.95 && unit < 4; unit++) // as gpushim's other commands
      number /= 1024;
    return (unit ? number.toFixed(1) : number) + ' ' + units[unit];
  }

  function time(ns) {
    return ns < 1e3 ? ns + ' ns' : ns < 999.5e3 ? (ns / 1e3).toPrecision(3) + ' us' :
      ns < 999.5e6 ? (ns / 1e6).toPrecision(3) + ' ms' : (ns / 1e9).toFixed(3) + ' s';
  }

  /* The number itself stays with the element, for who reads it. */
  function put(id, text, value) {
    element(id).textContent = text;
    if (value !== undefined)
      element(id).dataset.value = value;
  }

  /* How many frames of a stack have names, which come first: "label optimizer", "step (/srv/train.py:41)". */
  function named(stack) {
    const first = stack.findIndex(frame => frame !== '?' && !/:\d+\)$/.test(frame) && !(frame.startsWith('label ') && !/\+0x[0-9a-f]+\)$/.test(frame)));
    return first < 0 ? stack.length : first;
  }

  /* Of a script its own lines alone. */
  const chain = stack => stack.slice(0, named(stack) || stack.length).join(' \u2190 ');

  function who(block) {
    return block[7] < 0 ? 'blocks of ' + block[2] + ' bytes' : chain(data.stacks[block[7]]);
  }

  /* ---- What is there ---- */

  const isThere = (one, from, to, moment) => one[from] <= moment && (one[to] < 0 || one[to] > moment);

  /* The running sum of one device's blocks: [moment, live from there on]. */
  function sumOf(list, from, to) {
    const deltas = new Map();
    for (const one of list) {
      deltas.set(one[from], (deltas.get(one[from]) || 0) + one[2]);
      if (one[to] >= 0)
        deltas.set(one[to], (deltas.get(one[to]) || 0) - one[2]);
    }
    let sum = 0;
    return [...deltas.keys()].sort((a, b) => a - b).map(moment => [moment, sum += deltas.get(moment)]);
  }

  function choose(number) {
    device = number, chosen = [];
    blocks = data.blocks.filter(block => block[0] === device);
    pieces = data.pieces.filter(piece => piece[0] === device);
    figures = data.figures.filter(row => row[1] === device);
    changes = sumOf(blocks, 3, 4);
    peak = 0;
    let most = -1;
    for (const [moment, live] of changes)
      if (live > most)
        most = live, peak = moment;
    element('moment').max = Math.max(0, data.moments.length - 1);
    putDevice(report.devices.find(row => row.device === device));
    drawTimeline();
    show(peak);
  }

  /* ---- Over time ---- */

  /* Steps thinned to the columns of the drawing: of each the one with the highest sum. A step is a time
   * and numbers that hold from then on. */
  function thin(steps, width) {
    const columns = new Array(COLUMNS).fill(null), sum = step => step.slice(1).reduce((a, b) => a + b, 0);
    const place = ns => Math.min(COLUMNS - 1, Math.floor(ns / Math.max(1, report.duration_ns) * COLUMNS));
    let before = new Array(width + 1).fill(0), next = 0;
    for (let column = 0; column < COLUMNS; column++) {
      let most = before;
      for (; next < steps.length && place(steps[next][0]) <= column; next++) {
        before = steps[next];
        if (sum(before) > sum(most))
          most = before;
      }
      columns[column] = most.slice(1);
    }
    return columns;
  }

  function shape(kind, attributes, parent = element('timeline')) {
    const made = document.createElementNS('http://www.w3.org/2000/svg', kind);
    for (const [name, value] of Object.entries(attributes))
      made.setAttribute(name, value);
    parent.append(made);
    return made;
  }

  /* The steps, each of which names a round size or time, of an axis. */
  function steps(most, grow) {
    let step = 1;
    for (let i = 0; most / step >= 5; i++)
      step = grow(step, i);
    return Array.from({length: Math.floor(most / step) + 1}, (_, i) => i * step);
  }

  function drawAxes(most) {
    for (const size of steps(most, step => 2 * step)) {
      const y = 8 + (HEIGHT - BOTTOM - 8) * (1 - size / most);
      shape('line', {x1: LEFT, x2: WIDTH, y1: y, y2: y, stroke: 'var(--line)'});
      shape('text', {x: LEFT - 5, y: y + 4, 'text-anchor': 'end'}).textContent = bytes(size);
    }
    const whole = Math.max(1, report.duration_ns);
    for (const at of steps(whole, (step, i) => step * (i % 3 === 1 ? 2.5 : 2)))
      shape('text', {x: LEFT + (WIDTH - LEFT) * at / whole, y: HEIGHT - 6,
        'text-anchor': at === 0 ? 'start' : at > .95 * whole ? 'end' : 'middle'}).textContent = time(at);
  }

  function drawTimeline() {
    const live = thin(changes.map(([moment, sum]) => [data.moments[moment], sum]), 1).map(column => column[0]);
    const told = thin(figures.map(row => [row[0], ...row.slice(2)]), KINDS.length);
    const layers = KINDS.map((_, kind) => told.map(column => column[kind]));
    const tops = live.map((value, i) => Math.max(value, told[i].reduce((sum, part) => sum + part, 0)));
    const most = Math.max(1, ...tops);
    const x = i => (LEFT + (WIDTH - LEFT) * i / (COLUMNS - 1)).toFixed(1);
    const y = value => (8 + (HEIGHT - BOTTOM - 8) * (1 - value / most)).toFixed(1);
    element('timeline').textContent = '';
    drawAxes(most);
    let below = new Array(COLUMNS).fill(0);
    layers.forEach((layer, kind) => {
      const above = layer.map((value, i) => below[i] + value);
      if (figures.length)
        shape('path', {fill: `var(--${KINDS[kind]})`, 'fill-opacity': .75, d: 'M' +
          above.map((value, i) => x(i) + ',' + y(value)).join('L') + 'L' +
          below.map((value, i) => x(i) + ',' + y(value)).reverse().join('L') + 'Z'});
      below = above;
    });
    if (!data.left_out)
      shape('path', {fill: 'none', stroke: 'var(--text)', 'stroke-width': 1.2, d: 'M' +
        live.map((value, i) => x(i) + ',' + y(value)).join('L')});
    const left = sumOf(blocks.filter(block => block[4] < 0), 3, 4).map(([moment, sum]) => [data.moments[moment], sum]);
    if (!data.left_out && left.length)
      shape('path', {id: 'leak', fill: 'none', stroke: 'var(--leak)', 'stroke-width': 1.5, 'stroke-dasharray': '6 3', d: 'M' +
        thin(left, 1).map((column, i) => x(i) + ',' + y(column[0])).join('L')});
    shape('line', {id: 'now', y1: 8, y2: HEIGHT - BOTTOM, stroke: 'var(--text)', 'stroke-dasharray': '4 3'});
  }

  /* ---- At a moment ---- */

  /* Where each piece of memory comes in a line of all of them: pieces, then what is in none. A block may lie in several. */
  function layOut(there, mapped) {
    const sorted = mapped.slice().sort((a, b) => a[1] - b[1]);
    const bars = sorted.map(piece => ({size: piece[2], address: piece[1], parts: []}));
    let outside = 0;
    for (const block of there) {
      const end = block[1] + block[2];
      let low = 0, high = sorted.length, from = block[1];
      while (low < high) {
        const middle = low + high >> 1;
        if (sorted[middle][1] <= from)
          low = middle + 1;
        else
          high = middle;
      }
      for (let bar = bars[--low]; from < end && bar && from >= bar.address && from < bar.address + bar.size; bar = bars[++low]) {
        const until = Math.min(end, bar.address + bar.size);
        bar.parts.push({from, size: until - from, block});
        from = until;
      }
      if (from < end) {
        bars.push({size: end - from, address: from, parts: [{from, size: end - from, block}]});
        outside += end - from;
      }
    }
    return {bars, outside};
  }

  function colour(block) {
    const key = block[7] < 0 ? block[2] : block[7] + 1;
    return `hsl(${key * 137.508 % 360} 55% ${45 + key * 7 % 20}%)`;
  }

  function drawMap(bars) {
    const canvas = element('map'), ratio = window.devicePixelRatio || 1;
    const width = canvas.clientWidth || WIDTH, height = 380, free = getComputedStyle(document.body).getPropertyValue('--free');
    const total = bars.reduce((sum, bar) => sum + bar.size, 0), gap = total / (ROWS * 300);
    const row = (total + gap * bars.length) / ROWS || 1, high = height / ROWS, context = canvas.getContext('2d');
    let at = 0;
    canvas.width = width * ratio, canvas.height = height * ratio;
    context.scale(ratio, ratio);
    drawn = [];
    /* From one place of the line to another, over as many rows as that takes. */
    function fill(from, size, style, block) {
      while (size > 0) {
        const line = Math.min(ROWS - 1, Math.floor(from / row)), part = line === ROWS - 1 ? size : Math.min(size, (line + 1) * row - from);
        const box = {x: (from - line * row) / row * width, y: line * high + 1, w: Math.max(part / row * width, .6), h: high - 2, block};
        context.fillStyle = style;
        context.fillRect(box.x, box.y, box.w, box.h);
        if (block)
          drawn.push(box);
        if (part <= 0)
          return;
        from += part, size -= part;
      }
    }
    for (const bar of bars) {
      fill(at, bar.size, free, null);
      for (const part of bar.parts)
        fill(at + part.from - bar.address, part.size, colour(part.block), part.block);
      at += bar.size + gap;
    }
  }

  function putRows(id, rows) {
    const body = element(id).tBodies[0];
    body.textContent = '';
    for (const cells of rows) {
      const row = body.insertRow();
      cells.forEach((text, i) => {
        const cell = row.insertCell();
        cell.textContent = text;
        cell.className = element(id).tHead.rows[0].cells[i].className;
      });
    }
  }

  function putHolders(there) {
    const holders = new Map();
    for (const block of there) {
      const key = block[7] < 0 ? 'size ' + block[2] : block[7];
      const holder = holders.get(key) || {bytes: 0, count: 0, block};
      holder.bytes += block[2], holder.count++;
      holders.set(key, holder);
    }
    putRows('map-holders', [...holders.values()].sort((a, b) => b.bytes - a.bytes).slice(0, LISTED)
      .map(holder => [bytes(holder.bytes), holder.count, who(holder.block)]));
  }

  /* ---- Who called ---- */

  /* From the outermost on: the label, and lines of a script, or where there are none functions. */
  function calls(block) {
    if (block[7] < 0)
      return [who(block)];
    const stack = data.stacks[block[7]], names = named(stack);
    const label = names && stack[0].startsWith('label ') ? 1 : 0;
    return [...stack.slice(0, label), ...stack.slice(label, names > label ? names : stack.length).reverse()];
  }

  function treeOf(there) {
    const top = {name: 'all', path: [], bytes: 0, count: 0, inner: new Map()};
    for (const block of there) {
      let at = top;
      at.bytes += block[2], at.count++;
      for (const name of calls(block).slice(0, FLAME_ROWS)) {
        if (!at.inner.has(name))
          at.inner.set(name, {name, path: [...at.path, name], bytes: 0, count: 0, inner: new Map()});
        at = at.inner.get(name);
        at.bytes += block[2], at.count++;
      }
    }
    return top;
  }

  function tint(name) {
    let hash = 7;
    for (const letter of name)
      hash = (hash * 31 + letter.codePointAt(0)) % 9973;
    return `hsl(${20 + hash % 40} ${70 + hash % 25}% ${62 + hash % 16}%)`;
  }

  function drawCall(node, from, width, depth, there) {
    const group = shape('g', {}, element('flame')), room = Math.floor(width / LETTER) - 1;
    shape('rect', {x: from, y: depth * FLAME_ROW, width: Math.max(width - .5, .5), height: FLAME_ROW - 1, fill: tint(node.name)}, group);
    if (room > 2)
      shape('text', {x: from + 3, y: depth * FLAME_ROW + 13}, group).textContent =
        node.name.length > room ? node.name.slice(0, room - 1) + '\u2026' : node.name;
    const said = `${node.name}: ${bytes(node.bytes)} in ${node.count} block` + (node.count === 1 ? '' : 's');
    shape('title', {}, group).textContent = said;
    group.addEventListener('pointerenter', () => put('flame-point', said));
    group.addEventListener('click', () => { chosen = node.path; drawFlame(there); });
  }

  /* All, and what leads to the chosen one, in full width; then its parts, the largest first. */
  function drawFlame(there) {
    const row = [], flame = element('flame');
    let node = treeOf(there), depth = 0, deepest = 0;
    flame.textContent = '';
    for (const name of chosen) {
      row.push(node);
      if (!node.inner.has(name))
        break;
      node = node.inner.get(name);
    }
    chosen = node.path;
    row.filter(one => one !== node).forEach(one => drawCall(one, 0, WIDTH, depth++, there));
    const scale = WIDTH / Math.max(1, node.bytes);
    (function down(one, from, level) {
      drawCall(one, from, one.bytes * scale, level, there);
      deepest = Math.max(deepest, level);
      for (const each of [...one.inner.values()].sort((a, b) => b.bytes - a.bytes)) {
        if (each.bytes * scale >= 1)
          down(each, from, level + 1);
        from += each.bytes * scale;
      }
    })(node, 0, depth);
    flame.setAttribute('viewBox', `0 0 ${WIDTH} ${(deepest + 1) * FLAME_ROW}`);
  }

  function show(moment) {
    const there = blocks.filter(block => isThere(block, 3, 4, moment));
    const mapped = pieces.filter(piece => isThere(piece, 3, 4, moment));
    const live = there.reduce((sum, block) => sum + block[2], 0);
    const reserved = mapped.reduce((sum, piece) => sum + piece[2], 0);
    const {bars, outside} = layOut(there, mapped);
    const now = data.moments[moment] || 0;
    element('moment').value = moment;
    element('moment').setAttribute('aria-valuetext', 'after ' + time(now));
    put('map-time', 'after ' + time(now), now);
    put('map-live', bytes(live), live);
    put('map-blocks', there.length, there.length);
    put('map-pieces', mapped.length, mapped.length);
    put('map-reserved', bytes(reserved), reserved);
    put('map-outside', bytes(outside), outside);
    element('map').setAttribute('aria-label', `map of ${there.length} blocks, ${bytes(live)}, in ${mapped.length} pieces, ${bytes(reserved)}`);
    drawMap(bars);
    putHolders(there);
    drawFlame(there);
    const line = element('now'), x = LEFT + (WIDTH - LEFT) * now / Math.max(1, report.duration_ns);
    line.setAttribute('x1', x), line.setAttribute('x2', x);
  }

  function point(event) {
    const map = element('map').getBoundingClientRect(), x = event.clientX - map.left, y = event.clientY - map.top;
    const box = drawn.find(one => x >= one.x && x <= one.x + one.w && y >= one.y && y <= one.y + one.h);
    if (box)
      element('map-point').textContent = `0x${box.block[1].toString(16)}: ${bytes(box.block[2])} since ` +
        `${time(data.moments[box.block[3]])}, ${box.block[6]}: ${who(box.block)}`;
  }

  /* ---- Totals ---- */

  function putDevice(row) {
    if (!row)
      return;
    put('peak-live', bytes(row.live_peak_bytes), row.live_peak_bytes);
    put('peak-reserved', bytes(row.reserved_peak_bytes), row.reserved_peak_bytes);
    put('peak-cached', bytes(row.cached_peak_bytes), row.cached_peak_bytes);
    put('peak-retired', bytes(row.retired_peak_bytes), row.retired_peak_bytes);
    put('peak-limbo', bytes(row.limbo_peak_bytes), row.limbo_peak_bytes);
    put('never-freed', `${row.never_freed} blocks, ${bytes(row.never_freed_bytes)}`, row.never_freed);
    putRows('end-holders', row.holders_at_end.map(holder => [bytes(holder.bytes), holder.blocks, time(holder.first_ns),
      time(holder.last_ns), chain(holder.stack)]));
  }

  function putTotals() {
    put('program', report.program || '?');
    document.title = 'GPU memory of ' + (report.program || '?');
    put('about', `pid ${report.pid}, recorded from ${new Date(report.began_ns / 1e6).toISOString()} on for ` +
      `${time(report.duration_ns)}, ${report.threads} thread` + (report.threads === 1 ? '' : 's'));
    element('missing').hidden = !report.missing;
    put('missing', report.missing || '');
    element('left-out').hidden = !data.left_out;
    put('left-out', `The map has the largest ${data.blocks.length} blocks and leaves ${data.left_out} smaller ones out; totals have all.`);
    put('total-allocations', report.allocations, report.allocations);
    put('total-frees', report.frees, report.frees);
    put('total-refused', report.refused, report.refused);
    put('total-in-calls', time(report.in_calls_ns), report.in_calls_ns);
    put('total-events', report.events, report.events);
    put('total-waited', time(report.waited_for_file_ns), report.waited_for_file_ns);
    putRows('slowest', report.slowest.map(call => [time(call.took_ns), call.call, call.bytes, call.outcome, call.device,
      call.thread, time(call.time_ns)]));
  }

  for (const row of report.devices)
    element('device').append(new Option(row.device + (row.name ? ', ' + row.name : ''), row.device));
  putTotals();
  choose(device);
  element('device').addEventListener('change', event => choose(Number(event.target.value)));
  element('moment').addEventListener('input', event => show(Number(event.target.value)));
  element('back').addEventListener('click', () => show(Math.max(0, Number(element('moment').value) - 1)));
  element('forth').addEventListener('click', () => show(Math.min(data.moments.length - 1, Number(element('moment').value) + 1)));
  element('to-peak').addEventListener('click', () => show(peak));
  element('map').addEventListener('pointermove', point);
  window.addEventListener('resize', () => show(Number(element('moment').value)));
  put('state', 'drawn by gpushim report');
})();
