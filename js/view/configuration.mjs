/**
 * What a page is to show.
 */

/** @typedef {import('./session.mjs').Session} Session */
/**
 * A checkpoint that can be shown; `statistics` are what is known of slots, by atom and slot.
 * @typedef {{label: string, source: import('./worker.mjs').Source,
 *   statistics?: Record<string, Record<string, ReturnType<Session['statistics']>>>}} Choice
 */
/**
 * @typedef {object} Configuration
 * @property {Choice[]} checkpoints of which the first is shown
 * @property {number | null} compared the one that it is compared with
 * @property {import('./plan.mjs').Plan | null} plan
 * @property {import('./log.mjs').LogOverview | null} log of the run
 * @property {Record<string, object>} patterns ready-made documents, by name
 */

/** @type {Configuration} */
const NOTHING = {
  checkpoints: [], compared: null, plan: null, log: null, patterns: {},
};

/**
 * The address of a checkpoint that the page's own address names, of an origin that the page's policy has.
 * @param {string} text
 */
function askedUrl(text) {
  const url = new URL(text, location.href);
  if (url.protocol === 'file:') throw new Error('a page that is a file reads no directories by their names: open the directory, or drop it here');
  const policy = /** @type {HTMLMetaElement | null} */ (document.querySelector('meta[http-equiv="Content-Security-Policy"]'))?.content ?? '';
  if (url.origin !== location.origin && !policy.split(/[\s;]+/).includes(url.origin)) {
    throw new Error(`this page may not ask ${url.origin}: ucp view --url writes one that may`);
  }
  return url.href;
}

/**
 * What came with the page, in it or beside it.
 * @returns {Promise<Partial<Configuration>>}
 */
async function carriedConfiguration() {
  const carried = document.getElementById('configuration');
  return carried ? JSON.parse(carried.textContent) : (await fetch('configuration.json')).json();
}

/**
 * What the page is to show: from itself, from the server beside it, or from its address.
 * @returns {Promise<Configuration>}
 */
export async function configuration() {
  const asked = new URLSearchParams(location.search).getAll('checkpoint');
  if (asked.length > 0) {
    const checkpoints = asked.map((url) => ({label: url, source: {url: askedUrl(url)}}));
    const {patterns} = await carriedConfiguration().catch(() => NOTHING);
    return {
      ...NOTHING, checkpoints, compared: asked.length > 1 ? 1 : null, patterns: patterns ?? {},
    };
  }
  const found = {...NOTHING, ...await carriedConfiguration()};
  const checkpoints = found.checkpoints.map((choice) => (choice.source.url === undefined ? choice
    : {...choice, source: {url: new URL(choice.source.url, location.href).href}}));
  return {...found, checkpoints};
}
