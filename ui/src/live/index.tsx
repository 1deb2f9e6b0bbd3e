import { useQueryClient } from "@tanstack/react-query";
import { createContext, type ReactNode, useContext, useEffect, useState, useSyncExternalStore } from "react";
import { get } from "@/api/client";
import { Problem } from "@/api/problem";
import { useLatest } from "@/lib/use-latest";
import { Connection, type LiveState } from "./connection";
import { openShared } from "./shared-stream";

const Live = createContext<Connection | null>(null);

async function checkServer(): Promise<boolean> {
  try {
    await get("/api/me");
    return true;
  } catch (thrown) {
    return thrown instanceof Problem && !thrown.isDown;
  }
}

let checking: Promise<boolean> | undefined;

const server = {
  open: openShared,
  // one check at a time: if the session has expired, it waits until the user signs in
  isReachable: () => {
    checking ??= checkServer().finally(() => {
      checking = undefined;
    });
    return checking;
  },
};

export function LiveProvider({ children }: { children: ReactNode }) {
  const client = useQueryClient();
  const [connection] = useState(() => new Connection(client, server));
  useEffect(() => {
    connection.start();
    return () => connection.stop();
  }, [connection]);
  return <Live.Provider value={connection}>{children}</Live.Provider>;
}

function useConnection(): Connection {
  const found = useContext(Live);
  if (!found) throw new Error("LiveProvider is missing");
  return found;
}

/** Opens a new stream at once, such as after a sign-in. */
export function useReconnect(): () => void {
  return useConnection().renew;
}

export function useLiveState(): LiveState {
  const connection = useConnection();
  return useSyncExternalStore(connection.subscribe, () => connection.state);
}

/** Calls the listener for each event, after the cache was updated. */
export function useLiveEvent<K extends Parameters<Connection["on"]>[0]>(
  kind: K,
  listener: Parameters<typeof Connection.prototype.on<K>>[1],
): void {
  const connection = useConnection();
  const latest = useLatest(listener);
  useEffect(() => connection.on(kind, (data) => latest.current(data)), [connection, kind, latest]);
}
