/**
 * The worker of the page: opens stores and answers questions, one after the other.
 *
 * A message is `{id, method, params}`; the answer is `{id, result}` or `{id, error}`, with what was fetched so far.
 */

import {EmbeddedStore} from '../browser/embedded.mjs';
import {FilesStore, HttpStore} from '../browser/stores.mjs';
import {UcpError} from '../lib/errors.mjs';
import {logOverview} from './log.mjs';
import {Session} from './session.mjs';

/** @type {Map<string, Session>} by the name that the page gives it */
const sessions = new Map();
/** What sessions have fetched that others took the place of. */
const fetched = {requests: 0, bytes: 0};

function storeOf({url, files, objects}) {
  if (url !== undefined) return new HttpStore(url);
  return files ? new FilesStore(new Map(files)) : new EmbeddedStore(objects);
}

function sessionOf(side) {
  const session = sessions.get(side);
  if (!session) throw new UcpError('UCP-E-NOT-FOUND', '', 'no checkpoint is open');
  return session;
}

const METHODS = {
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
  log({files}) {
    return logOverview(new FilesStore(new Map(files)));
  },
  difference(params) {
    return sessionOf(params.side).difference(params, sessionOf(params.other));
  },
  planTo(params) {
    return sessionOf(params.side).planTo(params, sessionOf(params.other));
  },
};
for (const method of ['part', 'summary', 'state', 'window', 'statistics', 'heatMap', 'layout', 'plan', 'wholePlan', 'patternParameters', 'patternPlan', 'places', 'problems']) {
  METHODS[method] = (params) => sessionOf(params.side)[method](params);
}

self.onmessage = ({data: {id, method, params}}) => {
  const answer = {id};
  try {
    answer.result = METHODS[method](params);
  } catch (error) {
    const {code, at = '', detail, message} = /** @type {Error & Partial<UcpError>} */ (error);
    answer.error = {code: typeof code === 'string' ? code : null, at, detail: detail ?? message};
  }
  answer.fetched = {...fetched};
  for (const {store} of sessions.values()) {
    answer.fetched.requests += store.fetched.requests;
    answer.fetched.bytes += store.fetched.bytes;
  }
  self.postMessage(answer);
};
