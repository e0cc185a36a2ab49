/* What pages need besides the theme: blocks that scroll can be reached by key, and versions can be chosen. */
'use strict';

/* what is wider than its column scrolls: Tab and the arrows must reach it. */
const KINDS = {'.table-wrapper': 'table', 'div.math': 'formula', 'div.highlight pre, .cell_output pre, .cell_output': 'code or output'};
const VIEWS = '.decodelab-explorer, .dx-wide, .dx-scroll, .dl-scroll';
function reachable() {
  for (const [blocks, label] of Object.entries({...KINDS, [VIEWS]: 'view'}))
    for (const block of document.querySelectorAll(blocks))
      if (block.scrollWidth > block.clientWidth && !block.hasAttribute('tabindex')) {
        block.tabIndex = 0;
        block.setAttribute('role', 'group');
        block.setAttribute('aria-label', label);
      }
}

/* two side bars, two forms of search: each has a name */
const NAMES = {'.sidebar-drawer': 'Pages', '.toc-drawer': 'On this page', '.sidebar-search-container': 'In the side bar'};
function named() {
  for (const [block, label] of Object.entries(NAMES))
    document.querySelector(block)?.setAttribute('aria-label', label);
}

/* versions.json stands at the root of all versions: beside the pages of the newest, above those of a released one */
async function showVersions() {
  if (location.protocol === 'file:') return;  // a copy on a disk has one version
  const root = new URL(document.documentElement.dataset.content_root || './', location.href);
  for (const place of ['versions.json', '../versions.json']) {
    let list;
    try {
      const answer = await fetch(new URL(place, root));
      if (!answer.ok) continue;
      list = await answer.json();
    } catch { continue; }
    const home = new URL(place, root);
    const current = list.find(v => new URL(v.path, home).href === root.href);
    const select = document.createElement('select');
    select.setAttribute('aria-label', 'Version');
    for (const version of list) {
      const option = new Option(version.name, new URL(version.path, home).href);
      option.selected = version === current;
      select.append(option);
    }
    select.addEventListener('change', () => {
      const page = location.href.slice(root.href.length).split('#')[0];
      fetch(select.value + page, {method: 'HEAD'})
        .then(answer => { location.href = select.value + (answer.ok ? page : ''); })
        .catch(() => { location.href = select.value; });
    });
    const box = document.createElement('div');
    box.className = 'versions';
    box.append(select);
    document.querySelector('.sidebar-brand')?.after(box);
    return;
  }
}

document.addEventListener('DOMContentLoaded', () => { reachable(); named(); showVersions(); });
addEventListener('resize', reachable);
