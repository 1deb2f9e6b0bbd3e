import { render, screen } from "@testing-library/react";
import { expect, it, vi } from "vitest";
import { type Command, useAllCommands, useCommands } from "./commands";

const command = (id: string): Command => ({ id, name: id, group: "Page", run: vi.fn() });

function Page({ id }: { id: string }) {
  useCommands([command(id)]);
  return null;
}

const Palette = () => (
  <p>
    {useAllCommands()
      .map((each) => each.id)
      .join(" ")}
  </p>
);

it("the palette offers the commands of all mounted components", () => {
  render(<Palette />);
  const shell = render(<Page id="queue" />);
  const page = render(<Page id="pause" />);
  expect(screen.getByText("queue pause")).toBeDefined();
  page.unmount();
  expect(screen.getByText("queue")).toBeDefined();
  shell.unmount();
});
