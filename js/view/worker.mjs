/**
 * The worker of the page: opens stores and answers questions, one after the other.
 *
 * A message is `{id, method, params}`; the answer is `{id, result}` or `{id, error}`, with what was fetched so far.
 */

/**
 * Where the objects of a checkpoint are, and previews of tensors where the page carries some.
 * @typedef {{previews?: Record<string, Record<string, import('./session.mjs').Preview>>}} WithPreviews
 * @typedef {WithPreviews & {url: string, files?: undefined, objects?: undefined}} AtUrl
 * @typedef {WithPreviews & {files: import('./files.mjs').Named[], url?: undefined, objects?: undefined}} InFiles
 * @typedef {WithPreviews & {objects: Record<string, import('../browser/embedded.mjs').Embedded>, url?: undefined, files?: undefined}} Carried
 * @typedef {AtUrl | InFiles | Carried} Source
 */
/** @typedef {{side: string}} OfSide which of the open checkpoints is asked about */
/** @typedef {OfSide & {other: string}} OfSides and which it is compared with */
/**
 * Questions that one session answers by itself.
 * @typedef {'part' | 'summary' | 'state' | 'window' | 'statistics' | 'heatMap' | 'layout' | 'plan' | 'wholePlan'
 *   | 'patternParameters' | 'patternPlan' | 'places' | 'problems'} Alone
 */
/** @typedef {{[M in Alone]: (params: OfSide & (Parameters<Session[M]> extends [infer What] ? What : {})) => ReturnType<Session[M]>}} OfSession */
/** @typedef {typeof METHODS} Methods */

import {EmbeddedStore} from '../browser/embedded.mjs';
import {FilesStore, HttpStore} from '../browser/stores.mjs';
import {UcpError} from '../lib/errors.mjs';
import {logOverview} from './log.mjs';
import {Session} from './session.mjs';

/** @type {Map<string, Session>} by the name that the page gives it */
const sessions = new Map();
/** What sessions have fetched that others took the place of. */
const fetched = {requests: 0, bytes: 0};

/** @param {Source} source */
function storeOf(source) {
  if (source.url !== undefined) return new HttpStore(source.url);
  return source.files ? new FilesStore(new Map(source.files)) : new EmbeddedStore(source.objects);
}

/** @param {string} side */
function sessionOf(side) {
  const session = sessions.get(side);
  if (!session) throw new UcpError('UCP-E-NOT-FOUND', '', 'no checkpoint is open');
  return session;
}

/** @type {OfSession} */
const OF_SESSION = {
  part: (params) => sessionOf(params.side).part(params),
  summary: (params) => sessionOf(params.side).summary(),
  state: (params) => sessionOf(params.side).state(),
  window: (params) => sessionOf(params.side).window(params),
  statistics: (params) => sessionOf(params.side).statistics(params),
  heatMap: (params) => sessionOf(params.side).heatMap(params),
  layout: (params) => sessionOf(params.side).layout(params),
  plan: (params) => sessionOf(params.side).plan(params),
  wholePlan: (params) => sessionOf(params.side).wholePlan(params),
  patternParameters: (params) => sessionOf(params.side).patternParameters(params),
  patternPlan: (params) => sessionOf(params.side).patternPlan(params),
  places: (params) => sessionOf(params.side).places(params),
  problems: (params) => sessionOf(params.side).problems(params),
};

const METHODS = {
  ...OF_SESSION,
  /** @param {OfSide & {source: Source}} params */
  open(params) {
    const before = sessions.get(params.side)?.store;
    if (before) {
      fetched.requests += before.fetched.requests;
      fetched.bytes += before.fetched.bytes;
    }
    sessions.delete(params.side);
    const session = new Session(storeOf(params.source), params.source.previews);
    sessions.set(params.side, session);
    return session.root;
  },
  /** @param {{files: import('./files.mjs').Named[]}} params */
  log({files}) {
    return logOverview(new FilesStore(new Map(files)));
  },
  /** @param {OfSides & Parameters<Session['difference']>[0]} params */
  difference(params) {
    return sessionOf(params.side).difference(params, sessionOf(params.other));
  },
  /** @param {OfSides} params */
  planTo(params) {
    return sessionOf(params.side).planTo(sessionOf(params.other));
  },
};

/** What all sessions have fetched so far, those before them included. */
function fetchedSoFar() {
  const sum = {...fetched};
  for (const {store} of sessions.values()) {
    sum.requests += store.fetched.requests;
    sum.bytes += store.fetched.bytes;
  }
  return sum;
}

/**
 * The answer to a question, without what was fetched.
 * @param {keyof Methods} method
 * @param {any} params of that method, as the client sends them
 * @returns {{result: ReturnType<Methods[keyof Methods]>} | {error: {code: string | null, at: string, detail: string}}}
 */
function answered(method, params) {
  try {
    return {result: METHODS[method](params)};
  } catch (error) {
    const {code, at = '', detail, message} = /** @type {Error & Partial<UcpError>} */ (error);
    return {error: {code: typeof code === 'string' ? code : null, at, detail: detail ?? message}};
  }
}

self.onmessage = ({data: {id, method, params}}) => {
  self.postMessage({id, ...answered(method, params), fetched: fetchedSoFar()});
};
