import { useQueryClient } from "@tanstack/react-query";
import { createContext, type ReactNode, useContext, useEffect, useRef, useState, useSyncExternalStore } from "react";
import { get } from "@/api/client";
import { Problem } from "@/api/problem";
import { Connection, type LiveState } from "./connection";
import { openShared } from "./shared";

const Live = createContext<Connection | null>(null);

async function ask(): Promise<boolean> {
  try {
    await get("/api/me");
    return true;
  } catch (thrown) {
    return thrown instanceof Problem && !thrown.isAway && thrown.status < 500;
  }
}

let asking: Promise<boolean> | undefined;

const outside = {
  open: openShared,
  // where the session is over, the answer comes after the next one has begun
  reach: () => {
    asking ??= ask().finally(() => {
      asking = undefined;
    });
    return asking;
  },
};

export function LiveProvider({ children }: { children: ReactNode }) {
  const client = useQueryClient();
  const [connection] = useState(() => new Connection(client, outside));
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

/** Begins a new stream at once, for whoever knows that there can be one again. */
export function useReconnect(): () => void {
  return useConnection().renew;
}

export function useLiveState(): LiveState {
  const connection = useConnection();
  return useSyncExternalStore(connection.watch, () => connection.state);
}

/** Do something when an event arrives; the cache has it already. */
export function useLiveEvent<K extends Parameters<Connection["on"]>[0]>(
  kind: K,
  listener: Parameters<typeof Connection.prototype.on<K>>[1],
): void {
  const connection = useConnection();
  const newest = useRef(listener);
  newest.current = listener;
  useEffect(() => connection.on(kind, (data) => newest.current(data)), [connection, kind]);
}
