'use strict';
// Everything that is shown goes through textContent or setAttribute: nothing of a job becomes markup.

const content = document.getElementById('content');
const live = document.getElementById('live');
const kEnded = ['Succeeded', 'Failed', 'Cancelled'];

function make(tag, attributes, ...children) {
  const svg = ['svg', 'polyline', 'text'].includes(tag);
  const node = svg ? document.createElementNS('http://www.w3.org/2000/svg', tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value !== null && value !== undefined) node.setAttribute(name, value);
  }
  for (const child of children.flat(Infinity)) {
    if (child !== null && child !== undefined) node.append(child);
  }
  return node;
}

const isNumber = (value) => typeof value === 'number' && Number.isFinite(value);
const number = (value, digits) => isNumber(value) ? value.toLocaleString('en', {maximumFractionDigits: digits}) : '–';
const clock = (seconds) => isNumber(seconds) ? new Date(seconds * 1000).toLocaleString() : '–';
const jobLink = (id, text) => make('a', {href: '#job-' + id}, text);

function table(heads, rows, stacks) {
  const cell = (value, i) => make('td', {class: heads[i].number ? 'number' : null, 'data-head': heads[i].text}, value);
  return make('div', {class: 'wide'}, make('table', {class: stacks ? 'stacks' : null},
    make('thead', {}, make('tr', {}, heads.map((head) => make('th', {scope: 'col', class: head.number ? 'number' : null}, head.text)))),
    make('tbody', {}, rows.map((row) => make('tr', {}, row.map(cell))))));
}

function nodeItem(node) {
  const state = node.draining ? 'draining' : node.state;
  const failed = new Map(node.failed_devices.map((one) => [one.device, one.reason]));
  const slow = new Map(node.slow_devices.map((one) => [one.device, one.reason]));
  const devices = node.device_jobs.map((job, i) => {
    const what = [job === 0 ? null : 'job ' + job, failed.get(i), slow.get(i)].filter((one) => one).join(', ') || 'free';
    const kind = failed.has(i) ? 'failed' : slow.has(i) ? 'slow' : null;
    return make(job === 0 ? 'span' : 'a', {href: job === 0 ? null : '#job-' + job, class: kind,
      title: node.device_kind + ' ' + i + ': ' + what, 'aria-label': 'device ' + i + ', ' + what}, i + ({failed: ' ✗', slow: ' !'}[kind] || ''));
  });
  // A node that has not spoken to this coordinator has no devices to show, and what is known of them all the same.
  const faults = [...node.failed_devices, ...node.slow_devices]
    .map((one) => make('div', {class: 'fault'}, 'device ' + one.device + ' ' + one.reason));
  const mark = node.mark === '' ? null
    : make('div', {}, node.mark + (node.mark_by === '' ? '' : ' by ' + node.mark_by) + ': ' + node.mark_reason);
  const reserved = !node.reserved ? null
    : make('div', {}, 'reserved' + (node.reserved_by === '' ? '' : ' by ' + node.reserved_by) + ': ' + node.reserved_reason);
  const refused = node.refused === '' ? null : make('div', {class: 'fault'}, node.refused);
  const unfit = node.unfit === '' ? null : make('div', {class: 'fault'}, 'gets nothing new: ' + node.unfit);
  return make('li', {class: state + ' ' + node.mark + (node.reserved ? ' reserved' : '')},
    make('strong', {}, node.name), ' ' + state, refused, unfit, mark, reserved,
    make('div', {class: 'soft'}, 'heard of ' + clock(node.last_heartbeat)), make('div', {class: 'devices'}, devices), faults);
}

// As core/base/rough_time.h tells how far away a guess is.
function roughly(seconds) {
  const minutes = seconds / 60;
  return minutes < 100 ? Math.max(1, Math.round(minutes)) + ' min'
    : minutes < 48 * 60 ? Math.round(minutes / 60) + ' h' : Math.round(minutes / (24 * 60)) + ' d';
}

// Of one that waits: its number among those that wait for the same devices, a guess of when it starts, and when at the latest, where
// they are known.
function place(job) {
  if (job.fits_no_nodes) return 'fits no nodes';
  if (!isNumber(job.queue_number)) return null;
  const starts = [isNumber(job.starts_about) ? 'in about ' + roughly(job.starts_about - Date.now() / 1000) : null,
    isNumber(job.starts_by) ? 'by ' + clock(job.starts_by) : null].filter((one) => one);
  return 'number ' + job.queue_number + (starts.length > 0 ? ', starts ' + starts.join(', ') : '');
}

function jobRow(job) {
  const waits = place(job);
  return [String(job.id), jobLink(job.id, job.name),
    make('div', {}, make('span', {class: 'phase ' + job.phase}, job.phase), waits && make('div', {class: 'soft'}, waits)),
    isNumber(job.step) ? number(job.step) + ' / ' + number(job.steps) : '–', number(job.loss, 4),
    number(job.tokens_per_second, 0), job.devices > 0 ? number(job.devices) : '–', job.reason];
}

const kJobHeads = [{text: 'Id', number: true}, {text: 'Name'}, {text: 'Phase'}, {text: 'Step', number: true}, {text: 'Loss', number: true},
  {text: 'Tokens/s', number: true}, {text: 'Devices', number: true}, {text: 'Reason'}];

function jobsPart(title, jobs, none) {
  return [make('h2', {}, title), jobs.length === 0 ? make('p', {class: 'soft'}, none) : table(kJobHeads, jobs.map(jobRow), true)];
}

function showOverview(page) {
  document.title = 'Phalanx';
  const nodes = page.nodes_ready + page.nodes_suspect + page.nodes_disconnected;
  const queue = page.jobs.filter((job) => job.phase === 'Queued').sort((a, b) =>
    b.priority - a.priority || (a.queue_number || Infinity) - (b.queue_number || Infinity) || a.id - b.id);
  const hidden = nodes > page.nodes.length ? ', the first ' + page.nodes.length + ' shown' : '';
  return [
    make('h2', {}, 'Cluster'),
    make('p', {class: 'soft'}, nodes + ' nodes' + hidden + ': ' + page.nodes_ready + ' ready, ' + page.nodes_suspect + ' suspect, ' +
      page.nodes_disconnected + ' disconnected. Devices: ' + page.devices_used + ' used, ' + page.devices_free + ' free' +
      (page.devices_failed > 0 ? ', ' + page.devices_failed + ' failed' : '') +
      (page.devices_slow > 0 ? ', ' + page.devices_slow + ' slow' : '') +
      (page.devices_reserved > 0 ? ', ' + page.devices_reserved + ' in reserve.' : '.')),
    make('ul', {class: 'nodes'}, page.nodes.map(nodeItem)),
    jobsPart('Running', page.jobs.filter((job) => ['Running', 'Starting'].includes(job.phase)), 'No job runs.'),
    jobsPart('Queue', queue, 'No job waits.'),
    jobsPart('Ended', page.jobs.filter((job) => kEnded.includes(job.phase)), 'No job has ended.'),
  ];
}

// Four digits say enough of a curve.
const short = (value) => value.toLocaleString('en', {maximumSignificantDigits: 4});

function chart(title, points) {
  const good = points.filter((point) => isNumber(point[1]));
  if (good.length < 2) return make('figure', {}, make('figcaption', {}, title + ': fewer than two steps are known'));
  const xs = good.map((point) => point[0]), ys = good.map((point) => point[1]);
  const x0 = xs[0], x1 = xs[xs.length - 1], y0 = Math.min(...ys), y1 = Math.max(...ys);
  const x = (value) => 50 + 440 * (value - x0) / (x1 - x0);
  const y = (value) => y1 === y0 ? 90 : 165 - 150 * (value - y0) / (y1 - y0);
  const label = title + ': from ' + short(ys[0]) + ' at step ' + x0 + ' to ' + short(ys[ys.length - 1]) + ' at step ' + x1;
  return make('figure', {}, make('svg', {viewBox: '0 0 500 190', role: 'img', 'aria-label': label},
    make('polyline', {points: good.map((point) => x(point[0]).toFixed(1) + ',' + y(point[1]).toFixed(1)).join(' ')}),
    make('text', {x: 4, y: 18}, short(y1)), make('text', {x: 4, y: 168}, short(y0)),
    make('text', {x: 50, y: 185}, String(x0)), make('text', {x: 490, y: 185, 'text-anchor': 'end'}, String(x1))),
    make('figcaption', {}, label));
}

function incidentPart(job, incident) {
  const milliseconds = (value) => isNumber(value) ? number(value / 1000, 1) : '–';
  // A picture is asked for again when its incident has changed.
  const done = incident.phases.filter((phase) => isNumber(phase.end)).length;
  return make('details', {'data-key': 'incident-' + incident.number},
    make('summary', {}, incident.number + '. ' + incident.summary),
    make('img', {src: '/api/jobs/' + job.id + '/incidents/' + incident.number + '.svg?' + done, loading: 'lazy',
      alt: 'Phases of incident ' + incident.number + '; the table below has them in numbers'}),
    table([{text: 'Phase'}, {text: 'Begin, ms', number: true}, {text: 'End, ms', number: true}],
      incident.phases.map((phase) => [phase.name, milliseconds(phase.begin), milliseconds(phase.end)]), false),
    incident.next ? make('p', {}, 'Next: ' + incident.next) : null);
}

function facts(pairs) {
  return make('dl', {}, pairs.filter((pair) => pair[1]).map(([name, value]) => [make('dt', {}, name), make('dd', {}, value)]));
}

function showJob(job) {
  document.title = job.name + ' – Phalanx';
  const failure = job.failure;
  return [
    make('p', {}, make('a', {href: '#'}, '← all jobs')),
    make('h2', {}, 'job-' + job.id + ' ' + job.name),
    facts([['Phase', make('span', {class: 'phase ' + job.phase}, job.phase)], ['Place in the queue', place(job)], ['Reason', job.reason],
      ['Failure', failure && failure.cause + ': ' + failure.message], ['Next', failure && failure.next],
      ['Step', isNumber(job.step) && number(job.step) + ' of ' + number(job.steps)], ['Loss', isNumber(job.loss) && number(job.loss, 5)],
      ['Tokens/s', isNumber(job.tokens_per_second) && number(job.tokens_per_second, 0)], ['Epoch', String(job.epoch)],
      ['Submitted', clock(job.submitted)], ['Started', job.started && clock(job.started)], ['Ended', job.ended && clock(job.ended)],
      ['Checkpoint', job.checkpoint_path && 'step ' + job.checkpoint_step + ', ' + job.checkpoint_path], ['Output', job.output],
      ['Warnings', job.warnings.join('\n')]]),
    make('h2', {}, 'Curves'),
    make('div', {class: 'charts'}, chart('Loss', job.curve.map((point) => [point[0], point[1]])),
      chart('Tokens a second', job.curve.filter((point) => point[2] > 0).map((point) => [point[0], point[2]]))),
    make('h2', {}, 'Incidents'),
    job.incidents.length === 0 ? make('p', {class: 'soft'}, 'None.') : job.incidents.map((incident) => incidentPart(job, incident)),
    job.placed ? [make('h2', {}, 'Pipeline'), make('p', {class: 'soft'}, 'A step as planned '
      + (job.without === 0 ? 'for all its devices.' : job.without === 1 ? 'without the rank that is lost.' : 'without the ' + job.without + ' ranks that are lost.')),
      make('img', {src: '/api/jobs/' + job.id + '/timeline.svg?epoch=' + job.epoch + '&without=' + job.without, loading: 'lazy', alt: 'Passes of a step on each class of ranks, as planned'})] : null,
    job.evaluation ? [make('h2', {}, 'Samples'), make('p', {class: 'soft'}, 'Loss on the validation set ' + number(job.evaluation.loss, 4) +
      '; a guess at random has ' + number(job.evaluation.uniform_loss, 4) + '.'),
      table([{text: 'Sample'}, {text: 'Truth'}, {text: 'Decoded'}], job.evaluation.captions.map((one) => [one.sample, one.truth, one.decoded]), true)] : null,
    make('h2', {}, 'Events'),
    table([{text: 'Time'}, {text: 'Type'}, {text: 'Message'}], job.events.slice().reverse().map((event) => [clock(event.time), event.type, event.message]), true),
  ];
}

// What stays of the page before: which details are open, pictures that are the same, where the focus is.
function replace(children) {
  const open = new Set([...content.querySelectorAll('details[open]')].map((one) => one.dataset.key));
  const pictures = new Map([...content.querySelectorAll('img')].map((one) => [one.getAttribute('src'), one]));
  const focused = content.contains(document.activeElement) ? document.activeElement : null;
  const selector = focused && (focused.closest('details') ? 'details[data-key="' + focused.closest('details').dataset.key + '"] > summary'
    : focused.hasAttribute('href') ? 'a[href="' + focused.getAttribute('href') + '"]' : null);
  content.replaceChildren(...children.flat(Infinity).filter((child) => child));
  for (const one of content.querySelectorAll('details')) one.open = open.has(one.dataset.key);
  for (const one of content.querySelectorAll('img')) {
    if (pictures.has(one.getAttribute('src'))) one.replaceWith(pictures.get(one.getAttribute('src')));
  }
  if (selector) {
    const again = content.querySelector(selector);
    if (again) again.focus({preventScroll: true});
  }
}

let stream = null;
let timer = null;

function stop() {
  if (stream) stream.close();
  stream = null;
  clearTimeout(timer);
}

function follow() {
  // Another place of the same page is no other page.
  if (current !== '' && !/^(#(job-[0-9]+)?)?$/.test(location.hash)) return;
  stop();
  const id = location.hash.replace('#job-', '');
  const isJob = location.hash.startsWith('#job-');
  const path = isJob ? '/api/jobs/' + id : '/api/overview';
  const show = (page) => {
    replace(isJob ? showJob(page) : showOverview(page));
    const ended = isJob && kEnded.includes(page.phase);
    live.textContent = ended ? 'ended' : 'live';
    if (ended) stop();
  };
  const gone = () => {
    stop();
    live.textContent = 'gone';
    replace([make('p', {}, 'There is no such job. ', make('a', {href: '#'}, 'All jobs'))]);
  };
  const poll = async () => {
    try {
      const response = await fetch(path);
      if (path !== current) return;
      if (response.status === 404) return gone();
      if (response.ok) show(await response.json());
    } catch (error) {
      live.textContent = 'the coordinator does not answer';
    }
    if (path === current && live.textContent !== 'ended' && !document.hidden) timer = setTimeout(poll, 5000);
  };
  current = path;
  live.textContent = 'connecting';
  stream = new EventSource('/api/stream?' + path);
  stream.addEventListener('page', (event) => show(JSON.parse(event.data)));
  stream.addEventListener('gone', gone);
  stream.addEventListener('error', () => {
    live.textContent = 'connecting';
    if (stream && stream.readyState === EventSource.CLOSED) {  // too many streams are open: ask now and then
      stop();
      poll();
    }
  });
}
let current = '';

addEventListener('hashchange', () => {
  follow();
  content.focus();
});
// A browser has few connections to one host: pages in the background leave them to those that are seen.
function unlessHidden() {
  stop();
  if (!document.hidden) follow();
}

document.addEventListener('visibilitychange', unlessHidden);
addEventListener('pagehide', stop);
addEventListener('pageshow', (event) => { if (event.persisted) follow(); });
unlessHidden();
