/* The search of the site. The index is searchdata.js (docs/search_index.py); this ranks its entries.
   Works in a browser, and in node for the tests. */
'use strict';

const Search = (() => {
  /* how much a page of each kind is likely to be what is looked for */
  const KINDS = {
    install: 1.6, tutorial: 1.35, task: 1.3, reference: 1.2, glossary: 1.15, home: 0.9,
    book: 1.0, model: 1.0, experiment: 0.85, page: 0.8, member: 0.6, claims: 0.35,
  };
  const LABELS = {
    install: 'Install', tutorial: 'Tutorial', task: 'How do I …?', reference: 'API', glossary: 'Glossary',
    home: 'Home', book: 'The book', model: 'Model', experiment: 'Experiment', page: 'Page', member: 'API', claims: 'Claim',
  };
  /* words that readers of other libraries use */
  const SYNONYMS = {
    installation: 'install', setup: 'install', pip: 'install', nucleu: 'topp', topk: 'topk',
    assisted: 'assistant', speculation: 'speculative', detection: 'detect', detecting: 'detect',
    gpu: 'device', quantization: 'quantize', lossles: 'lossless', repetition: 'repetition',
  };
  const TITLE = 9, WHOLE_TITLE = 14, PHRASE = 6, BODY = 1, PAGE = 3;
  let data = {entries: [], words: {}};
  let titles = [];
  let vocabulary = [];

  const stem = word => word.length > 3 && word.endsWith('s') && !word.endsWith('ss') ? word.slice(0, -1) : word;

  /* as `words` of search_index.py */
  function words(text) {
    const out = [];
    for (const [whole] of text.matchAll(/[\p{L}\p{N}]+(?:[-_'’][\p{L}\p{N}]+)*/gu)) {
      const pieces = whole.split(/[-_'’]/);
      const parts = pieces.flatMap(p => p.match(/[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+/g) || [p]);
      out.push(stem(pieces.join('').toLowerCase()));
      if (parts.length > 1) out.push(...parts.map(p => stem(p.toLowerCase())));
    }
    return out;
  }

  /* the words of a query: a compound counts as itself, not as its parts */
  function wanted(query) {
    const out = [];
    for (const [whole] of query.matchAll(/[\p{L}\p{N}]+(?:[-_'’][\p{L}\p{N}]+)*/gu))
      out.push({joined: stem(whole.replace(/[-_'’]/g, '').toLowerCase()), parts: words(whole).slice(1)});
    return out;
  }

  function load(index) {
    data = index;
    vocabulary = Object.keys(index.words);
    titles = index.entries.map(([, title, page]) => ({title: words(title), page: new Set(words(page))}));
  }

  /* edits (also of neighbours that changed places) between two words, `most` + 1 if there are more */
  function distance(a, b, most) {
    if (Math.abs(a.length - b.length) > most) return most + 1;
    let before = [], row = [...Array(b.length + 1).keys()];
    for (let i = 1; i <= a.length; i++) {
      const next = [i];
      for (let j = 1; j <= b.length; j++) {
        next[j] = Math.min(row[j] + 1, next[j - 1] + 1, row[j - 1] + (a[i - 1] !== b[j - 1]));
        if (i > 1 && j > 1 && a[i - 1] === b[j - 2] && a[i - 2] === b[j - 1])
          next[j] = Math.min(next[j], before[j - 2] + 1);
      }
      [before, row] = [row, next];
      if (Math.min(...row) > most) return most + 1;
    }
    return row[b.length];
  }

  /* word of the index -> how well it stands for a word of the query */
  function alternatives(word) {
    const found = new Map();
    const known = w => Object.hasOwn(data.words, w);
    if (known(word)) found.set(word, 1);
    const other = SYNONYMS[word];
    if (other && known(other)) found.set(other, 0.9);
    if (word.length >= 3)
      for (const w of vocabulary)
        if (w !== word && w.startsWith(word)) found.set(w, Math.max(0.3, 0.8 * word.length / w.length));
    if (!found.size && word.length >= 4) {
      const most = word.length >= 8 ? 2 : 1;
      for (const w of vocabulary) {
        const d = distance(word, w, most);
        if (d <= most) found.set(w, 0.7 - 0.2 * d);
      }
    }
    return found;
  }

  /* Map entry -> score of one word */
  function scores(word) {
    const out = new Map(), corrected = new Set();
    const n = data.entries.length;
    for (const [w, weight] of alternatives(word)) {
      const steps = data.words[w];
      const rarity = Math.log(1 + n / (steps.length / 2));
      let i = 0;
      for (let at = 0; at < steps.length; at += 2) {
        i += steps[at];
        const count = steps[at + 1], length = data.entries[i][4];
        const inTitle = titles[i].title.includes(w), inPage = titles[i].page.has(w);
        const body = BODY * count / (count + 0.5 + length / 150);
        const value = weight * rarity * (body + (inTitle ? TITLE / (1 + 0.15 * titles[i].title.length) : 0) + (inPage ? PAGE : 0));
        if (value > (out.get(i) || 0)) out.set(i, value);
      }
      if (weight <= 0.5) corrected.add(w);
    }
    /* titles whose words do not stand in the body */
    for (const [w, weight] of alternatives(word))
      titles.forEach(({title, page}, i) => {
        if (!title.includes(w) && !page.has(w)) return;
        const rarity = Math.log(1 + n / ((data.words[w] || [0, 0]).length / 2));
        const value = weight * rarity * ((title.includes(w) ? TITLE / (1 + 0.15 * title.length) : 0) + (page.has(w) ? PAGE : 0));
        if (value > (out.get(i) || 0)) out.set(i, value);
      });
    return out;
  }

  /* the best entries of a query, at most `limit`, at most three of a page */
  function search(query, limit = 40) {
    const asked = wanted(query);
    if (!asked.length) return [];
    const total = new Map(), met = new Map();
    const joined = asked.map(a => a.joined);
    asked.forEach(({joined: word, parts}) => {
      let found = scores(word);
      const exact = Object.hasOwn(data.words, word);
      if (parts.length && !exact) {
        found = new Map();
        for (const part of parts) for (const [i, s] of scores(part)) found.set(i, (found.get(i) || 0) + s / parts.length);
      }
      for (const [i, s] of found) {
        total.set(i, (total.get(i) || 0) + s);
        met.set(i, (met.get(i) || 0) + 1);
      }
    });
    const hits = [];
    for (const [i, score] of total) {
      const [url, title, page, kind] = data.entries[i];
      const share = met.get(i) / asked.length;
      let value = score * share ** 3 * (KINDS[kind] || 1);
      const own = titles[i].title.join(' '), phrase = joined.join(' ');
      if (own === phrase) value += WHOLE_TITLE * (KINDS[kind] || 1);
      else if (asked.length > 1 && ` ${own} `.includes(` ${phrase} `)) value += PHRASE * (KINDS[kind] || 1);
      if (!url.includes('#')) value *= 1.15;
      hits.push({url, title, page, kind, label: LABELS[kind] || kind, value, share});
    }
    hits.sort((a, b) => b.value - a.value || (a.url < b.url ? -1 : 1));
    const seen = new Map(), named = new Set(), out = [];
    for (const hit of hits) {
      const home = hit.url.split('#')[0], name = `${home} ${hit.title}`;
      const n = seen.get(home) || 0;
      if (named.has(name)) continue; // a page and its one definition
      named.add(name);
      if (n < 3 && out.length < limit) out.push(hit);
      seen.set(home, n + 1);
    }
    return out;
  }

  /* the query as it was understood, where a word of it is unknown; '' otherwise */
  function corrected(query) {
    let changed = false;
    const out = wanted(query).map(({joined: word, parts}) => {
      if (Object.hasOwn(data.words, word) || parts.length || SYNONYMS[word]) return word;
      if (vocabulary.some(w => word.length >= 3 && w.startsWith(word))) return word;
      let best = '', score = 0;
      for (const [w, weight] of alternatives(word)) {
        const frequency = weight * (1 + Math.log(data.words[w].length));
        if (frequency > score) [best, score] = [w, frequency];
      }
      changed = changed || Boolean(best);
      return best || word;
    });
    return changed ? out.join(' ') : '';
  }

  return {load, search, corrected, words, distance};
})();

if (typeof module !== 'undefined') module.exports = Search;

/* The page of results: search.html */
function showResults() {
  const box = document.getElementById('search-results');
  const field = document.getElementById('search-field');
  if (!box || !field) return;
  const root = document.documentElement.dataset.content_root || '';
  const element = (tag, text, attributes = {}) => {
    const node = Object.assign(document.createElement(tag), attributes);
    if (text) node.textContent = text;
    return node;
  };

  function show() {
    const query = field.value.trim();
    const hits = Search.search(query);
    const status = document.getElementById('search-status');
    box.replaceChildren();
    const understood = query && Search.corrected(query);
    status.textContent = !query ? '' : hits.length ? `${hits.length} results` : 'Nothing was found: try another word.';
    if (understood) status.textContent += `, for “${understood}”`;
    const list = element('ol', '', {className: 'search-hits'});
    for (const hit of hits) {
      const item = element('li');
      item.append(element('a', hit.title, {href: root + hit.url}));
      const where = hit.page === hit.title ? hit.label : `${hit.label} · ${hit.page}`;
      item.append(element('span', where, {className: 'search-where'}));
      list.append(item);
    }
    box.append(list);
    const address = new URL(location);
    address.searchParams.set('q', query);
    history.replaceState(null, '', address);
  }

  field.value = new URLSearchParams(location.search).get('q') || '';
  field.addEventListener('input', show);
  field.form.addEventListener('submit', event => { event.preventDefault(); show(); });
  show();
  field.focus();
}

/* "/" goes to the field of the side bar */
function focusOnSlash(event) {
  const typing = /^(INPUT|TEXTAREA|SELECT)$/.test(document.activeElement?.tagName || '');
  if (event.key !== '/' || event.ctrlKey || event.metaKey || event.altKey || typing) return;
  const field = document.querySelector('#search-field, .sidebar-search');
  if (field) { event.preventDefault(); field.focus(); }
}

if (typeof document !== 'undefined') {
  document.addEventListener('DOMContentLoaded', showResults);
  document.addEventListener('keydown', focusOnSlash);
}
