import { fireEvent, render, screen } from "@testing-library/react";
import { expect, it } from "vitest";
import { Table } from "./Table";

it("a table sorts by the columns that can be sorted", () => {
  const rows = [
    { name: "b", seconds: 5 },
    { name: "a", seconds: 10 },
  ];
  render(
    <Table
      name="Jobs"
      rows={rows}
      keyOf={(row) => row.name}
      columns={[
        { id: "name", name: "Name", show: (row) => row.name, sort: (row) => row.name },
        { id: "time", name: "Time", show: (row) => row.seconds },
      ]}
    />,
  );
  const names = () => screen.getAllByRole("row").map((each) => each.querySelector("td")?.textContent);
  expect(names().slice(1)).toEqual(["b", "a"]);
  fireEvent.click(screen.getByRole("button", { name: "Name" }));
  expect(names().slice(1)).toEqual(["a", "b"]);
  expect(screen.getByRole("columnheader", { name: "Name" }).getAttribute("aria-sort")).toBe("ascending");
  expect(screen.queryByRole("button", { name: "Time" })).toBeNull();
});
