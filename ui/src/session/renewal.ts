// When a session expires, the app asks the user to sign in again on top of the open page. Requests wait until then and
// are sent again, so no input is lost.

import { Store, useStore } from "@/lib/store";

interface SignInRequest {
  promise: Promise<void>;
  resolve: () => void;
}

const request = new Store<SignInRequest | null>(null);

/** Asks the user to sign in. All callers share one request, which resolves after the sign-in. */
export function requestSignIn(): Promise<void> {
  const open = request.get();
  if (open) return open.promise;
  let resolve = () => {};
  const promise = new Promise<void>((done) => {
    resolve = done;
  });
  request.set({ promise, resolve });
  return promise;
}

export function completeSignIn(): void {
  const open = request.get();
  request.set(null);
  open?.resolve();
}

export const useIsSignInRequested = (): boolean => useStore(request) !== null;
