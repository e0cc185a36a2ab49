/* Eight queries and the pages that must be among their first hits, on a built site:
   node docs/queries.js docs/_build/html */
'use strict';

const fs = require('fs');
const path = require('path');

const LIMIT = 3;
const EXPECTED = {
  'speculative decoding': /tutorials\/faster|speculative\//,
  'watermark detect': /tutorials\/watermark|detection\/03_detect|api\/detection/,
  'install': /^install\.html/,
  'top-p': /03_logits\/01_warpers|TopP/,
  'temperture': /Temperature|03_logits\/01_warpers|glossary/,
  'EAGLE': /eagle/i,
  'acceptance rate': /glossary|metrics/,
  'lossless': /tutorials\/lossless|certif/,
};

const html = process.argv[2] || path.join(__dirname, '_build', 'html');
const Search = require(path.join(html, '_static', 'search.js'));
const index = fs.readFileSync(path.join(html, '_static', 'searchdata.js'), 'utf-8');
new Function('Search', index)(Search);

let missed = 0;
for (const [query, expected] of Object.entries(EXPECTED)) {
  const hits = Search.search(query).slice(0, LIMIT);
  const good = hits.some(hit => expected.test(hit.url));
  missed += !good;
  console.log(`${good ? 'found ' : 'MISSED'} ${query}`);
  for (const hit of hits) console.log(`         ${hit.title} (${hit.label}): ${hit.url}`);
}
process.exit(missed ? 1 : 0);
