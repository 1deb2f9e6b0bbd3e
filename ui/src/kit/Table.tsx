import {
  type ColumnDef,
  flexRender,
  getCoreRowModel,
  getSortedRowModel,
  type SortingState,
  useReactTable,
} from "@tanstack/react-table";
import { ArrowDown, ArrowUp } from "lucide-react";
import { type ReactNode, useState } from "react";
import styles from "./Table.module.css";

export interface TableColumn<T> {
  id: string;
  name: string;
  show: (row: T) => ReactNode;
  /** Sort key. Without it, the column cannot be sorted. */
  sort?: (row: T) => string | number;
  align?: "start" | "end";
  /** Gets its own line on a phone. */
  isLong?: boolean;
}

interface TableProps<T> {
  name: string;
  rows: readonly T[];
  columns: readonly TableColumn<T>[];
  keyOf: (row: T) => string;
}

export function Table<T>({ name, rows, columns, keyOf }: TableProps<T>) {
  const [sorting, setSorting] = useState<SortingState>([]);
  const table = useReactTable<T>({
    data: rows as T[],
    columns: columns.map(
      (each): ColumnDef<T> => ({
        id: each.id,
        header: each.name,
        accessorFn: each.sort ?? (() => null),
        enableSorting: each.sort !== undefined,
        cell: ({ row }) => each.show(row.original),
        meta: { align: each.align ?? "start" },
      }),
    ),
    state: { sorting },
    onSortingChange: setSorting,
    getRowId: keyOf,
    getCoreRowModel: getCoreRowModel(),
    getSortedRowModel: getSortedRowModel(),
  });
  const columnOf = (id: string) => columns.find((each) => each.id === id);
  const alignOf = (id: string) => columnOf(id)?.align;
  return (
    // biome-ignore lint/a11y/noNoninteractiveTabindex: the keyboard scrolls it on small screens
    <div className={styles.scroll} role="group" aria-label={name} tabIndex={0}>
      <table className={styles.table} aria-label={name}>
        <thead>
          <tr>
            {table.getFlatHeaders().map(({ column }) => {
              const sorted = column.getIsSorted();
              return (
                <th
                  key={column.id}
                  scope="col"
                  data-align={alignOf(column.id)}
                  aria-sort={sorted ? (sorted === "asc" ? "ascending" : "descending") : undefined}
                >
                  {column.getCanSort() ? (
                    <button type="button" className={styles.sort} onClick={column.getToggleSortingHandler()}>
                      {String(column.columnDef.header)}
                      {sorted && (sorted === "asc" ? <ArrowUp aria-hidden /> : <ArrowDown aria-hidden />)}
                    </button>
                  ) : (
                    String(column.columnDef.header)
                  )}
                </th>
              );
            })}
          </tr>
        </thead>
        <tbody>
          {table.getRowModel().rows.map((row) => (
            <tr key={row.id}>
              {row.getVisibleCells().map((cell) => (
                <td
                  key={cell.id}
                  data-align={alignOf(cell.column.id)}
                  data-name={columnOf(cell.column.id)?.name}
                  data-wide={columnOf(cell.column.id)?.isLong}
                >
                  {flexRender(cell.column.columnDef.cell, cell.getContext())}
                </td>
              ))}
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}
